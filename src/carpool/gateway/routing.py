"""Which replica gets a request: the least loaded; of several, the one that knows its prefix."""

import hashlib
from collections.abc import Callable, Iterable
from types import TracebackType

from carpool.backends.backend import BackendState, Quirks
from carpool.gateway.circuit_breaker import Attempt, CircuitBreaker
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_errors import Timeouts
from carpool.scheduling.capacity import Capacity

OPENAI = Quirks(health_path="/v1/models")
NO_TIMEOUTS = Timeouts()
PREFIX_BYTES = 1024
"""Bytes of a request's body that stand for its prefix: system prompt and tools come first."""


class Replica:
    """One engine that serves a model. `state` is what its supervisor says, `capacity` what it
    carries (None: not known yet), `model` its own name for the model (None: as asked);
    `retry_after_s` says when it may be back.
    `num_at_engine` is what it said last that it has,
    `num_in_flight` counts requests until their bodies end, `num_foreign` what others than this
    gateway have there."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        breaker: CircuitBreaker,
        *,
        model: str | None = None,
        api_key: str | None = None,
        quirks: Quirks = OPENAI,
        timeouts: Timeouts = NO_TIMEOUTS,
        capacity: Capacity | None = None,
        on_not_reached: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.name = name
        self.upstream = upstream
        self.breaker = breaker
        self.model = model
        self.api_key = api_key
        self.quirks = quirks
        self.timeouts = timeouts
        self.capacity = capacity
        self.on_not_reached = on_not_reached
        self.state = BackendState.READY
        self.retry_after_s: Callable[[], float] = lambda: 1.0
        self.num_restarts = 0
        self.num_in_flight = 0
        self.peak_in_flight = 0
        self.num_foreign = 0
        self.num_at_engine = 0

    @property
    def is_ready(self) -> bool:
        return self.state is BackendState.READY

    @property
    def load(self) -> float:
        """The share of its seats that are taken."""
        num_seats = 1 if self.capacity is None else self.capacity.max_num_seqs
        return (self.num_in_flight + self.num_foreign) / num_seats

    def can_take(self, now: float) -> bool:
        return self.is_ready and self.breaker.allows(now)

    def heard_load(self, num_at_engine: int) -> None:
        """The engine says how many requests it has. What it says is a little old, so only what
        exceeds the most that were ours since it was last asked is somebody else's."""
        self.num_at_engine = num_at_engine
        self.num_foreign = max(0, num_at_engine - self.peak_in_flight)
        self.peak_in_flight = self.num_in_flight

    def loaded(self, now: float) -> "Load":
        """Count a request while the `with` lasts: until the end of its body, however that
        comes."""
        return Load(self, self.breaker.attempt(now))


class Load:
    """A request at a replica; `with` gives the attempt that says how it went."""

    __slots__ = ("_attempt", "_replica")

    def __init__(self, replica: Replica, attempt: Attempt) -> None:
        self._replica = replica
        self._attempt = attempt

    def __enter__(self) -> Attempt:
        replica = self._replica
        replica.num_in_flight += 1
        replica.peak_in_flight = max(replica.peak_in_flight, replica.num_in_flight)
        return self._attempt

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._replica.num_in_flight -= 1
        self._attempt.end()


def choose_replica(replicas: Iterable[Replica], prefix: bytes, now: float) -> Replica | None:
    """The replica for a request with this prefix; None if none can take one.

    Of the least loaded, rendezvous hashing (Thaler and Ravishankar, 1998) gives each prefix
    the same one for as long as that is there.
    """
    able = [each for each in replicas if each.can_take(now)]
    if len(able) <= 1:
        return able[0] if able else None
    least = min(each.load for each in able)
    idlest = [each for each in able if each.load == least]
    return max(idlest, key=lambda each: _score(each.name, prefix))


def _score(name: str, prefix: bytes) -> bytes:
    return hashlib.blake2b(prefix, digest_size=8, key=name.encode()[:64]).digest()
