"""How requests come: so many at once, so many people, or at times of their own."""

from collections.abc import Sequence
from dataclasses import dataclass

from carpool.bench.errors import BenchError


@dataclass(frozen=True, slots=True)
class FixedConcurrency:
    """`num_streams` requests in flight at any time; they begin spread over `ramp_s` seconds."""

    num_streams: int
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.num_streams >= 1, f"{self.num_streams} streams are no load; give 1 or more")
        _check(self.ramp_s >= 0, f"a ramp of {self.ramp_s:g} s ends before it begins")

    def __str__(self) -> str:
        return f"{self.num_streams} stream{'' if self.num_streams == 1 else 's'}"

    @property
    def size(self) -> int:
        return self.num_streams


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """People who ask, read the answer, think, and ask again. Thinking is exponential with a
    mean of `think_s` seconds; the first questions are spread over `ramp_s`."""

    num_people: int
    think_s: float
    ramp_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self.num_people >= 1, f"{self.num_people} people are no load; give 1 or more")
        _check(self.think_s >= 0, f"nobody thinks for {self.think_s:g} s")
        _check(self.ramp_s >= 0, f"a ramp of {self.ramp_s:g} s ends before it begins")

    def __str__(self) -> str:
        return f"{self.num_people} people who think for {self.think_s:g} s"

    @property
    def size(self) -> int:
        return self.num_people


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests that are due at `offsets`, seconds from the start in rising order, whether or
    not those before them are answered. A request's clock starts when it is due."""

    offsets: Sequence[float]
    name: str = "open loop"

    def __post_init__(self) -> None:
        _check(len(self.offsets) > 0, "no request is ever due; give a higher rate or more seconds")

    def __str__(self) -> str:
        return self.name

    @property
    def ramp_s(self) -> float:
        """None: the arrivals themselves say how the load begins."""
        return 0.0


Load = FixedConcurrency | ClosedLoop | OpenLoop


def _check(is_right: bool, complaint: str) -> None:
    if not is_right:
        raise BenchError(complaint)
