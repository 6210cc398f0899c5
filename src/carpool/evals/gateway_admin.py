"""The engines of a gateway, by its admin API."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from carpool.backends.address import Address
from carpool.errors import CarpoolError
from carpool.gateway.lock_file import Pin
from carpool.gateway.model_config import BackendConfig
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_errors import Timeouts, UpstreamError

TIMEOUT_S = 60.0
POLL_S = 0.2
MAX_RESTARTS = 2
"""Of an engine that has not been ready yet."""
_TIMEOUTS = Timeouts(total=TIMEOUT_S)


class GatewayAdminError(CarpoolError):
    """The gateway does not answer, or refuses; the message says why."""


class EngineNeverReady(GatewayAdminError):
    """An engine that was started does not come up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """As the gateway sees it. `config` is as it runs, with sizes that were planned;
    `configured` are all engines of the model as somebody configured them; `current` and
    `previous` are what the lock has, of an engine that serves."""

    engine_id: str
    model: str
    name: str
    role: str
    state: str
    reason: str
    is_hopeless: bool
    num_restarts: int
    engine_model: str | None
    in_flight: int
    config: BackendConfig
    configured: tuple[BackendConfig, ...]
    current: Pin | None
    previous: Pin | None
    last_lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Engines:
    """`lock` is None where engines cannot be changed."""

    lock: Path | None
    engines: tuple[Engine, ...]

    def serving(self) -> list[Engine]:
        return [engine for engine in self.engines if engine.role == "serving"]


_ENGINES = TypeAdapter(Engines)
_ENGINE = TypeAdapter(Engine)


class GatewayAdmin:
    """Of the gateway whose admin API is at `url`. All methods raise GatewayAdminError."""

    def __init__(self, url: str, key: str) -> None:
        self.address = Address.from_url(url)
        self.key = key
        self._upstream = Upstream(self.address)

    def close(self) -> None:
        self._upstream.close()

    def engine_url(self, engine_id: str) -> str:
        """Where one engine alone is asked, with the admin key."""
        return f"{self.address}/admin/v1/engines/{engine_id}/at"

    async def engines(self, model: str | None = None) -> Engines:
        found = _ENGINES.validate_python(await self._ask("GET", "/engines"))
        wanted = tuple(each for each in found.engines if model in (None, each.model))
        return Engines(found.lock, wanted)

    async def start(self, model: str) -> Engine:
        """The candidate that the lock file has for a model."""
        return _ENGINE.validate_python(await self._ask("POST", "/engines", {"model": model}))

    async def promote(self, engine_id: str, replaces: str) -> None:
        await self._ask("POST", f"/engines/{engine_id}/promote", {"replaces": replaces})

    async def withdraw(self, engine_id: str) -> None:
        await self._ask("DELETE", f"/engines/{engine_id}", {})

    async def wait_until_ready(self, engine_id: str, within_s: float) -> Engine:
        """Raises EngineNeverReady."""
        deadline = time.monotonic() + within_s
        while True:
            found = await self.engines()
            engine = next((each for each in found.engines if each.engine_id == engine_id), None)
            if engine is None:
                raise EngineNeverReady("somebody else has ended the new engine")
            if engine.state == "ready":
                return engine
            said = f": {engine.reason}" if engine.reason else ""
            if engine.is_hopeless:
                raise EngineNeverReady(f"the new engine cannot run{said}")
            if engine.num_restarts >= MAX_RESTARTS:
                raise EngineNeverReady(f"the new engine ends again and again{said}")
            if time.monotonic() > deadline:
                raise EngineNeverReady(
                    f"the new engine was not ready after {within_s:g} s (--start-timeout); it is "
                    f"{engine.state}{said}"
                )
            await asyncio.sleep(POLL_S)

    async def wait_until_gone(self, engine_id: str) -> None:
        """Until it has finished what it had, however long that takes."""
        while True:
            found = await self.engines()
            if all(each.engine_id != engine_id for each in found.engines):
                return
            await asyncio.sleep(POLL_S)

    async def _ask(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> Any:
        headers = [(b"authorization", b"Bearer " + self.key.encode())]
        body = b""
        if fields is not None:
            headers.append((b"content-type", b"application/json"))
            body = json.dumps(fields).encode()
        path = f"/admin/v1{path}"
        try:
            async with await self._upstream.send(
                method, path, headers, body, _TIMEOUTS
            ) as response:
                raw = b"".join([piece async for piece in response])
                status = response.status
        except UpstreamError as error:
            raise GatewayAdminError(
                f"no admin API of a gateway at {self.address}: {error}; is it served "
                "(carpool serve --admin-port), and is --url right?"
            ) from None
        try:
            answer = json.loads(raw)
        except ValueError:
            raise GatewayAdminError(
                f"{self.address} answered {path} with {status} and no JSON; is it the admin API "
                "of a gateway?"
            ) from None
        if status >= 400:
            message = answer.get("error", {}).get("message", raw.decode("utf-8", "replace"))
            raise GatewayAdminError(f"the gateway refuses: {message}")
        return answer
