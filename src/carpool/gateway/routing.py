"""Which replica gets a request: the least loaded, or the one that knows its prefix."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from carpool.gateway.circuit_breaker import CircuitBreaker
from carpool.gateway.upstream import Upstream

PREFIX_BYTES = 1024
"""Bytes of a request's body that stand for its prefix: system prompt and tools come first."""
MAX_LEAD = 2
"""Requests by which the replica that knows a prefix may be busier than the least busy."""


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
    def loaded(self, now: float) -> Iterator[None]:
        """Count a request from here until the end of its body, however that comes."""
        self.num_in_flight += 1
        self.breaker.started(now)
        try:
            yield
        finally:
            self.num_in_flight -= 1


def choose_replica(replicas: Iterable[Replica], prefix: bytes, now: float) -> Replica | None:
    """The replica for a request with this prefix; None if none can take one.

    Rendezvous hashing (Thaler and Ravishankar, 1998) gives each prefix the same replica for
    as long as that is there and no more than `MAX_LEAD` requests busier than the least busy.
    """
    able = [each for each in replicas if each.is_ready and each.breaker.allows(now)]
    if not able:
        return None
    least = min(each.num_in_flight for each in able)
    favourite = max(able, key=lambda each: _score(each.name, prefix))
    if favourite.num_in_flight <= least + MAX_LEAD:
        return favourite
    return next(each for each in able if each.num_in_flight == least)


def _score(name: str, prefix: bytes) -> bytes:
    return hashlib.blake2b(prefix, digest_size=8, key=name.encode()[:64]).digest()
