"""A worker's part in what several workers and gateways share: limits, and seats at engines."""

import hashlib
import secrets
import socket
from collections.abc import Sequence

from carpool.backends.address import Address
from carpool.gateway.admission import Admission
from carpool.gateway.gate import Gate
from carpool.gateway.meters import UsedTokens
from carpool.gateway.redis_counters import RedisCounters
from carpool.gateway.redis_link import RedisLink
from carpool.gateway.shared_gate import SharedGate
from carpool.gateway.shared_seats import SharedSeats

_LOCAL_HOSTS = ("localhost", "127.", "::1")


class Sharing:
    """By the Redis at `url`. `num_workers` share until it says how many do."""

    def __init__(self, url: str, num_workers: int, used_tokens: UsedTokens) -> None:
        """Raises CountersError."""
        worker = secrets.token_hex(6)
        self._link = RedisLink(url)
        self._seats = SharedSeats(self._link, worker, num_workers)
        self.limits = RedisCounters(
            self._link, worker, used_tokens, lambda: self._seats.num_workers
        )

    @property
    def is_away(self) -> bool:
        """Whether this worker is on its own."""
        return self._link.is_away

    def make_gate(self, model: str, engines: Sequence[Address], admission: Admission) -> Gate:
        return SharedGate(admission, self._seats, seat_pool(model, engines))

    async def run(self) -> None:
        """Until cancelled."""
        await self._link.run(self._seats.channel)


def seat_pool(model: str, engines: Sequence[Address]) -> str:
    """The name of a model's seats at some engines: the same for all who send there, and for
    nobody else, so that it says of which machine a local address is."""
    places = sorted(
        f"{socket.gethostname()} {each}" if _is_local(each) else str(each) for each in engines
    )
    return f"{model}:{hashlib.sha256(chr(10).join(places).encode()).hexdigest()[:12]}"


def _is_local(address: Address) -> bool:
    return address.uds is not None or address.host.startswith(_LOCAL_HOSTS)
