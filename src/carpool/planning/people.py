"""From people to sequences in flight: a closed queueing network.

N people think for Z seconds, then one request each is served in R(n) seconds, n being how
many are served at once, on `num_seats` seats; who finds none waits. A birth-death chain
over k, the requests in the system: births (N - k)/Z, deaths min(k, c)/R(min(k, c)). Kleinrock,
Queueing Systems I, 3.8 (the machine repairman, with a service rate that depends on load).
What an arriving person finds is the same chain with one person fewer (arrival theorem).
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from carpool.planning.errors import require_positive

MOST_PEOPLE = 1000
"""Further than this the planner does not count: such a team has more than one machine."""

ServiceSeconds = Callable[[int], float]
"""Seconds that a request takes when so many are served at once."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """mean and p99: requests served at once. wait_share: of requests that find no seat.
    mean_wait_seconds: of all requests. requests_per_second: what the people get done."""

    mean: float
    p99: int
    wait_share: float
    mean_wait_seconds: float
    requests_per_second: float


def in_flight(
    num_people: int, think_seconds: float, service: ServiceSeconds, num_seats: int
) -> InFlight:
    """Raises `PlanError` for numbers that are not above zero."""
    require_positive("people", num_people)
    require_positive("think_seconds", think_seconds)
    require_positive("seats", num_seats)
    loads = _loads(service, min(num_people, num_seats), think_seconds)
    chain = _chain(num_people, loads)
    served = [min(k, num_seats) for k in range(len(chain))]
    mean = sum(p * n for p, n in zip(chain, served, strict=True))
    rate = sum(p * (num_people - k) for k, p in enumerate(chain)) / think_seconds
    waiting = sum(p * (k - n) for k, (p, n) in enumerate(zip(chain, served, strict=True)))
    return InFlight(
        mean=mean,
        p99=min(_quantile(chain, 0.99), num_seats),
        wait_share=_wait_share(num_people, num_seats, loads),
        mean_wait_seconds=waiting / rate if rate else 0.0,
        requests_per_second=rate,
    )


def seats_for(
    num_people: int, think_seconds: float, service: ServiceSeconds, wait_share: float
) -> int:
    """The fewest seats with which at most that share of requests waits."""
    loads = _loads(service, num_people, think_seconds)
    low, high = 1, num_people
    while low < high:
        middle = (low + high) // 2
        if _wait_share(num_people, middle, loads[:middle]) <= wait_share:
            high = middle
        else:
            low = middle + 1
    return low


def people_for(
    num_seats: int,
    think_seconds: float,
    service: ServiceSeconds,
    wait_share: float,
    most: int = MOST_PEOPLE,
) -> int:
    """The most people of whose requests at most that share waits for one of `num_seats`."""
    loads = _loads(service, min(num_seats, most), think_seconds)
    low, high = min(num_seats, most), most
    while low < high:
        middle = (low + high + 1) // 2
        if _wait_share(middle, num_seats, loads) <= wait_share:
            low = middle
        else:
            high = middle - 1
    return low


def _loads(service: ServiceSeconds, num_seats: int, think_seconds: float) -> list[float]:
    """For n served at once: seconds between two of them being done, in think times."""
    return [service(n) / n / think_seconds for n in range(1, num_seats + 1)]


def _wait_share(num_people: int, num_seats: int, loads: list[float]) -> float:
    """An arriving person finds the others."""
    return sum(_chain(num_people - 1, loads)[num_seats:])


def _chain(num_people: int, loads: list[float]) -> list[float]:
    """The share of time with k requests in the system, for k = 0 to `num_people`; more than
    there are `loads` wait."""
    weights, weight, last = [1.0], 1.0, len(loads) - 1
    for k in range(num_people):
        weight *= (num_people - k) * loads[min(k, last)]
        weights.append(weight)
        if weight > 1e200:
            weights = [value / weight for value in weights]
            weight = 1.0
    total = sum(weights)
    return [value / total for value in weights]


def _quantile(chain: list[float], share: float) -> int:
    for k, total in enumerate(accumulate(chain)):
        if total >= share:
            return k
    return len(chain) - 1
