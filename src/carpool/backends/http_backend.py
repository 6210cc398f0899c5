"""What all engines have in common: they speak HTTP and have a list of models."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from carpool.backends.address import Address
from carpool.backends.backend import (
    BackendKind,
    BackendState,
    BackendUnreachable,
    Command,
    EngineLoad,
    Quirks,
)
from carpool.backends.capacity_facts import CapacityFacts, parse_models
from carpool.backends.engine_load import LOAD_METRICS, parse_load
from carpool.backends.http_get import Answer, http_get
from carpool.scheduling.capacity import Capacity

PROBE_TIMEOUT_S = 5.0


class HttpBackend:
    """The `Backend` of every kind; a kind says what it prints and where it is read.

    `served_name` is what people call the model, and so a name to look for among those that the
    engine has. What a person set (`known`) goes before what the process printed, that before
    what it answers, and `defaults` are assumed for the rest.
    """

    kind: ClassVar[BackendKind]
    quirks: ClassVar[Quirks]
    defaults: ClassVar[CapacityFacts] = CapacityFacts()
    num_program_words: ClassVar[int] = 1
    """Of its command, those that say which program it is."""

    def __init__(
        self,
        name: str,
        address: Address,
        *,
        model: str | None = None,
        served_name: str | None = None,
        known: CapacityFacts | None = None,
        api_key: str | None = None,
        command: Command | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.model = model
        self._served_name = served_name
        self.api_key = api_key
        self._known = known or CapacityFacts()
        self._printed = CapacityFacts()
        self._command = command

    def command(self) -> Command | None:
        return self._command

    def call_by(self, program: Sequence[str]) -> None:
        """Launch it by these words in place of those that say which program it is; by the same
        as before if there are none."""
        if program and self._command is not None:
            arguments = self._command.argv[self.num_program_words :]
            self._command = replace(self._command, argv=(*program, *arguments))

    def began(self) -> None:
        self._printed = CapacityFacts()

    def read_line(self, line: str) -> None:
        self._printed = self.facts_of_line(line).or_else(self._printed)

    async def probe(self) -> BackendState:
        answer = await self._get(self.quirks.health_path)
        return self.state_of_answer(answer)

    async def read_capacity(self) -> Capacity:
        told = self._known.or_else(self._printed)
        return told.or_else(await self.read_facts()).capacity(self.defaults)

    async def read_load(self) -> EngineLoad | None:
        names = LOAD_METRICS.get(self.kind)
        if names is None:
            return None
        return parse_load((await self._get_body("/metrics")).decode("utf-8", "replace"), names)

    async def find_model(self) -> None:
        if self.model is not None:
            return
        names, _ = parse_models(await self._get_body("/v1/models"))
        if self._served_name in names:
            self.model = self._served_name
        elif len(names) == 1:
            self.model = names[0]
        elif names:
            listed = ", ".join(names[:20])
            raise BackendUnreachable(
                f"{self.address} has several models ({listed}); say which with --backend-model"
            )

    def facts_of_line(self, line: str) -> CapacityFacts:
        """What a line of the process's output says of its capacity."""
        return CapacityFacts()

    async def read_facts(self) -> CapacityFacts:
        """What the engine answers about its capacity. Raises BackendUnreachable."""
        _, facts = parse_models((await self._get_ok("/v1/models")).body, self.model)
        return facts

    def state_of_answer(self, answer: Answer) -> BackendState:
        """Raises BackendUnreachable for an answer that is neither ready nor loading."""
        if answer.status == 200:
            return BackendState.READY
        if answer.status == 503:
            return BackendState.LOADING
        raise self._no_use(self.quirks.health_path, answer)

    async def _get(self, path: str) -> Answer:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return await http_get(self.address, path, timeout_s=PROBE_TIMEOUT_S, headers=headers)

    async def _get_ok(self, path: str) -> Answer:
        answer = await self._get(path)
        if answer.status != 200:
            raise self._no_use(path, answer)
        return answer

    async def _get_body(self, *paths: str) -> bytes:
        """What the first of `paths` that it knows says; nothing if it knows none."""
        for path in paths:
            answer = await self._get(path)
            if answer.status == 200:
                return answer.body
        return b""

    def _no_use(self, path: str, answer: Answer) -> BackendUnreachable:
        hint = "; is its key right?" if answer.status in (401, 403) else ""
        return BackendUnreachable(f"{self.address} answered {path} with {answer.status}{hint}")
