"""Which replica gets a request: the least loaded; of several, the one that knows its prefix."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from carpool.gateway.circuit_breaker import Attempt, CircuitBreaker
from carpool.gateway.upstream import Upstream

PREFIX_BYTES = 1024
"""Bytes of a request's body that stand for its prefix: system prompt and tools come first."""


class Replica:
    """One engine that serves a model. `num_in_flight` counts requests until their bodies end;
    `is_ready` is what its supervisor says."""

    def __init__(
        self,
        name: str,
        upstream: Upstream,
        breaker: CircuitBreaker,
        *,
        model: str | None = None,
        api_key: str | None = None,
        has_stream_usage: bool = True,
    ) -> None:
        self.name = name
        self.upstream = upstream
        self.breaker = breaker
        self.model = model
        self.api_key = api_key
        self.has_stream_usage = has_stream_usage
        self.is_ready = True
        self.num_in_flight = 0

    @contextmanager
    def loaded(self, now: float) -> Iterator[Attempt]:
        """Count a request from here until the end of its body, however that comes."""
        attempt = self.breaker.attempt(now)
        self.num_in_flight += 1
        try:
            yield attempt
        finally:
            self.num_in_flight -= 1
            attempt.end()


def choose_replica(replicas: Iterable[Replica], prefix: bytes, now: float) -> Replica | None:
    """The replica for a request with this prefix; None if none can take one.

    Of the least loaded, rendezvous hashing (Thaler and Ravishankar, 1998) gives each prefix
    the same one for as long as that is there.
    """
    able = [each for each in replicas if each.is_ready and each.breaker.allows(now)]
    if len(able) <= 1:
        return able[0] if able else None
    least = min(each.num_in_flight for each in able)
    idlest = [each for each in able if each.num_in_flight == least]
    return max(idlest, key=lambda each: _score(each.name, prefix))


def _score(name: str, prefix: bytes) -> bytes:
    return hashlib.blake2b(prefix, digest_size=8, key=name.encode()[:64]).digest()
