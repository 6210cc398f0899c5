"""So many per minute, smoothly: the generic cell rate algorithm.

GCRA (ITU-T I.371, annex A, the virtual scheduling form): each unit takes 60 / limit seconds
of a schedule, and what would run more than `WINDOW_S` ahead of the clock does not conform.
One number of state, no window to sweep, and what was taken too much is given back by
subtraction.

Where only what conforms is taken, any t seconds see at most limit * (1 + t / 60) units, less
what is given back in them: a minute's worth at once, two in any minute, and `limit` a minute
in the long run.
"""

WINDOW_S = 60.0
ROUNDING_S = 1e-6
"""Sums of times are inexact; what is ahead by less than this is not ahead."""


class RateLimit:
    """`limit` units per minute. Times are seconds of one clock."""

    __slots__ = ("_free_at", "limit")

    def __init__(self, limit: int, free_at: float = 0.0) -> None:
        """`free_at` is when nothing of what was taken counts any more. Raises ValueError for a
        limit below 1."""
        if limit < 1:
            raise ValueError(f"a rate limit is {limit}, but must be at least 1 per minute")
        self.limit = limit
        self._free_at = free_at

    def wait_s(self, num_units: int, now: float) -> float:
        """Seconds until `num_units` conform; 0 if they do now, infinity if they never will."""
        if num_units > self.limit:
            return float("inf")
        wait = self.reset_s(now) + num_units * WINDOW_S / self.limit - WINDOW_S
        return wait if wait > ROUNDING_S else 0.0

    def take(self, num_units: int, now: float) -> None:
        """Count `num_units`, whether they conform or not."""
        self._free_at = max(self._free_at, now) + num_units * WINDOW_S / self.limit

    def give_back(self, num_units: int) -> None:
        """Undo `take` for units that were not used; a negative number takes more, as if it had
        been taken then."""
        self._free_at -= num_units * WINDOW_S / self.limit

    def change(self, limit: int, now: float) -> None:
        """Another limit from now on. Units that were taken stay taken, at its rate."""
        self._free_at = now + self.reset_s(now) * self.limit / limit
        self.limit = limit

    def remaining(self, now: float) -> int:
        """Units that conform right now."""
        free_s = WINDOW_S - self.reset_s(now) + ROUNDING_S
        return max(0, int(free_s * self.limit / WINDOW_S))

    def reset_s(self, now: float) -> float:
        """Seconds until nothing of what was taken counts any more."""
        return max(0.0, self._free_at - now)
