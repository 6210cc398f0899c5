"""An engine that another process launches and supervises, as a worker of the gateway sees it."""

from carpool.backends.address import Address
from carpool.backends.backend import (
    Backend,
    BackendKind,
    BackendState,
    BackendUnreachable,
    Command,
    EngineLoad,
    Quirks,
)
from carpool.backends.create import attach
from carpool.gateway.worker_config import EngineConfig, EngineNews
from carpool.scheduling.capacity import Capacity


class ToldBackend:
    """A Backend that is attached to, and asked by itself whether it is there. What cannot be
    asked for (what an engine printed, whether it is being started) it is `told`."""

    def __init__(self, config: EngineConfig, served_name: str) -> None:
        self._engine: Backend = attach(
            config.name,
            config.url,
            model=config.model,
            served_name=served_name,
            api_key=config.api_key,
        )
        self._is_launched = config.is_launched
        self._news: EngineNews | None = None

    def told(self, news: EngineNews) -> None:
        self._news = news

    @property
    def name(self) -> str:
        return self._engine.name

    @property
    def kind(self) -> BackendKind:
        return self._engine.kind

    @property
    def address(self) -> Address:
        return self._engine.address

    @property
    def quirks(self) -> Quirks:
        return self._engine.quirks

    @property
    def model(self) -> str | None:
        if self._news is not None and self._news.engine_model is not None:
            return self._news.engine_model
        return self._engine.model

    @property
    def api_key(self) -> str | None:
        return self._engine.api_key

    def command(self) -> Command | None:
        return None

    def began(self) -> None:
        """Somebody else's business, as are the lines it prints."""

    def read_line(self, line: str) -> None:
        """See `began`."""

    async def probe(self) -> BackendState:
        news = self._news
        if news is None or (self._is_launched and news.capacity is None):
            return BackendState.LOADING
        try:
            return await self._engine.probe()
        except BackendUnreachable:
            if self._is_launched and news.state is BackendState.LOADING:
                return BackendState.LOADING
            raise

    async def read_capacity(self) -> Capacity:
        if self._news is not None and self._news.capacity is not None:
            return self._news.capacity
        return await self._engine.read_capacity()

    async def read_load(self) -> EngineLoad | None:
        return await self._engine.read_load()

    async def find_model(self) -> None:
        if self.model is None:
            await self._engine.find_model()
