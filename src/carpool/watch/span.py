"""Buckets of time, side by side."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from carpool.watch.resolution import Resolution

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Span:
    """`num_points` buckets of `seconds`, the first of which begins at unix second `first`."""

    first: int
    seconds: int
    num_points: int

    @classmethod
    def of(cls, since: float, until: float, seconds: int) -> "Span":
        """All buckets that have a part of since..until."""
        first = int(since // seconds) * seconds
        return cls(first, seconds, max(0, int(-(-(until - first) // seconds))))

    @property
    def until(self) -> int:
        return self.first + self.num_points * self.seconds

    def starts(self) -> list[float]:
        return [float(self.first + self.seconds * n) for n in range(self.num_points)]

    def first_chunk(self, kind: Resolution) -> int:
        """Where the first chunk starts that may reach into this."""
        return kind.slot(self.first).start

    def places(self, start: int, slots: Array) -> tuple[Array, Array]:
        """Of the slots of a chunk, the places in here; and which of them have one."""
        places = (start - self.first) // self.seconds + slots.astype(np.int64)
        inside = (places >= 0) & (places < self.num_points)
        return places[inside], inside
