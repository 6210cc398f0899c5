"""What the rest of Carpool may ask of any engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from carpool.backends.address import Address
from carpool.errors import CarpoolError
from carpool.scheduling.capacity import Capacity


class BackendState(StrEnum):
    LOADING = "loading"
    """On its way to ready; however long it takes, this is no failure."""
    READY = "ready"
    DRAINING = "draining"
    """Finishing what runs; nothing new may be sent."""
    DOWN = "down"


class BackendKind(StrEnum):
    EMBEDDED = "embedded"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama.cpp"
    OLLAMA = "ollama"
    REMOTE = "remote"


class PriorityOrder(StrEnum):
    """What the request field `priority` means to the engine."""

    NONE = "none"
    LOW_FIRST = "low first"
    HIGH_FIRST = "high first"


class BackendUnreachable(CarpoolError):
    """The engine gave no answer, or none that can be used; the message says what happened."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """Where engines differ. `health_path` is asked by probes and never makes the engine
    generate. `max_tokens_name` is the only name by which chat completions know the cap on
    output (None: "max_tokens" and "max_completion_tokens"); any other is silently ignored.
    `has_stream_usage`: `stream_options.include_usage` is known and answered.
    `person_header` tells an engine whose request it is, so that it can be fair, too.
    `probe_interval_s` is how long to leave between probes of an engine that is ready."""

    health_path: str
    max_tokens_name: str | None = None
    has_stream_usage: bool = True
    priority_order: PriorityOrder = PriorityOrder.NONE
    probe_interval_s: float = 1.0
    person_header: str | None = None


@dataclass(frozen=True, slots=True)
class Command:
    """What to run, and what to add to the environment for it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Sequences in the batch, sequences that wait, and the share of the KV cache in use
    (0 to 1; None where the engine does not say). It is some time old: a correction of what
    one has sent oneself, not a replacement. `num_preemptions` counts from the engine's start."""

    num_running: int
    num_waiting: int
    kv_usage: float | None = None
    num_preemptions: int | None = None


class Backend(Protocol):
    """One engine at one address.

    `model` is the name that requests to it must carry (None until `find_model`). `api_key` is
    what it wants as a bearer token, if anything.
    """

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> BackendKind: ...
    @property
    def address(self) -> Address: ...
    @property
    def quirks(self) -> Quirks: ...
    @property
    def model(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...

    def command(self) -> Command | None:
        """What launches it; None when it is run by somebody else and only attached to."""
        ...

    def began(self) -> None:
        """A new process was started: what the last one printed no longer holds."""
        ...

    def read_line(self, line: str) -> None:
        """A line that the process printed."""
        ...

    async def probe(self) -> BackendState:
        """What it says of itself now. Raises BackendUnreachable."""
        ...

    async def read_capacity(self) -> Capacity:
        """What a ready engine can carry. Raises BackendUnreachable."""
        ...

    async def read_load(self) -> EngineLoad | None:
        """How busy it is; None if it does not say. Raises BackendUnreachable."""
        ...

    async def find_model(self) -> None:
        """Settle `model` by its list of models, where nobody has said it. Raises
        BackendUnreachable when the list leaves it open."""
        ...
