"""How finely time is cut, for how long that is kept, and how much of it is one chunk."""

from dataclasses import dataclass
from typing import NamedTuple

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Resolution:
    """`seconds` of a point, `chunk_s` of a chunk, `kept_s` until it is forgotten; open chunks
    are written every `write_s`."""

    seconds: int
    chunk_s: int
    kept_s: int
    write_s: int

    def slot(self, moment: float) -> "Slot":
        start = int(moment // self.chunk_s) * self.chunk_s
        return Slot(start, int((moment - start) // self.seconds))


class Slot(NamedTuple):
    """The chunk that starts at unix second `start`, and a place in it."""

    start: int
    number: int


FINE = Resolution(10, 600, 30 * DAY_S, 10)
MINUTES = Resolution(60, 3600, 30 * DAY_S, 60)
HOURS = Resolution(3600, DAY_S, 90 * DAY_S, 60)
ALL = (FINE, MINUTES, HOURS)
RESOLUTIONS = tuple(each.seconds for each in ALL)
BY_SECONDS = {each.seconds: each for each in ALL}
