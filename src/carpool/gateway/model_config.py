"""What a person says about a model that is to be served."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from carpool.errors import CarpoolError
from carpool.gateway.upstream_errors import Timeouts
from carpool.gateway.waiting_room import QueueLimits
from carpool.store.checks import check_limits
from carpool.store.limits import NO_LIMITS, Limits

_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")


class ModelConfigError(CarpoolError):
    """Settings of a model that do not go together."""


class WhenDown(StrEnum):
    """What becomes of a request while no engine of its model can take it."""

    HOLD = "hold"
    """It waits in the queue, which is bounded, until one is back."""
    FALLBACK = "fallback"
    """It goes to the same weights at another endpoint; also when the queue is full. What is
    private waits instead."""
    REFUSE = "refuse"
    """It is told at once when to try again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """An engine. `engine` is a kind to launch ("embedded", "vllm", ...) or the URL of one that
    runs; `model` what it is to load, or what it calls its model; `args` more arguments of its
    command; `api_key_env` the environment variable with the key it wants. Sizes, where given,
    go before what the engine says; no more than `measured_num_seqs` are admitted, which is
    what `carpool verify --apply` found people to put up with. `program` are the words that call
    it, in place of its kind's own ("vllm", ...); {version} in them stands for `version`."""

    engine: str = "embedded"
    model: str | None = None
    args: tuple[str, ...] = ()
    api_key_env: str | None = None
    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None
    measured_num_seqs: int | None = None
    program: tuple[str, ...] = ()
    version: str | None = None

    def __post_init__(self) -> None:
        if self.version is not None and not _VERSION.fullmatch(self.version):
            raise ModelConfigError(
                f"version is {self.version[:80]!r}, but must be letters, digits and . _ + -"
            )
        for name in ("max_num_seqs", "kv_tokens", "max_model_len", "measured_num_seqs"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ModelConfigError(f"{name} is {value}, but must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackConfig:
    """An OpenAI-compatible endpoint of somebody else's. `model` is its name there; at most
    `max_in_flight` requests are at it at once."""

    url: str
    model: str
    api_key_env: str | None = None
    max_in_flight: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model: `name` and `aliases` are what clients call it, `backends` its replicas.
    `is_private`: nothing of it ever leaves for a fallback. `limits` hold for
    each person, as far as this model goes. Raises ModelConfigError and InvalidField."""

    name: str
    aliases: tuple[str, ...] = ()
    backends: tuple[BackendConfig, ...] = (BackendConfig(),)
    when_down: WhenDown = WhenDown.HOLD
    fallback: FallbackConfig | None = None
    is_private: bool = False
    limits: Limits = NO_LIMITS
    queue: QueueLimits = field(default_factory=QueueLimits)
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        if not self.name:
            raise ModelConfigError("a model has no name; give it one")
        check_limits(self.limits)
        if not self.backends:
            raise ModelConfigError(f"{self.name} has no backends; give at least one engine")
        if (self.when_down is WhenDown.FALLBACK) != (self.fallback is not None):
            raise ModelConfigError(
                f'{self.name}: when_down = "fallback" and a fallback go together; give both or '
                "neither"
            )
        if self.is_private and self.fallback is not None:
            raise ModelConfigError(
                f"{self.name} is private and has a fallback, which would never be used; "
                "take one of them out"
            )
