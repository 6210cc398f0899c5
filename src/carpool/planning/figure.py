"""A number with its range and how it is known."""

from dataclasses import dataclass
from enum import StrEnum

GIB = 2**30


class Known(StrEnum):
    """From the surest to the least sure."""

    MEASURED = "measured"
    """Read off the files or the machine at hand."""
    DRIVER = "driver"
    """As the device's driver reports it."""
    PUBLISHED = "published"
    """From a published config, data sheet or paper."""
    FITTED = "fitted"
    """From a formula whose coefficients were fitted to reports of others."""
    ASSUMED = "assumed"
    """Nobody said; replace it by your own."""


_ORDER = list(Known)


def least_sure(*known: Known) -> Known:
    """What a sum is known by: its least sure part."""
    return max(known, key=_ORDER.index)


@dataclass(frozen=True, slots=True)
class Figure:
    """`value` lies between `low` and `high`; the unit is its owner's."""

    value: float
    low: float
    high: float
    known: Known

    @classmethod
    def exact(cls, value: float, known: Known) -> "Figure":
        return cls(value, value, value, known)

    @classmethod
    def about(cls, value: float, share: float, known: Known) -> "Figure":
        """`value` give or take that share of it."""
        return cls(value, value * (1 - share), value * (1 + share), known)

    def __add__(self, other: "Figure") -> "Figure":
        return Figure(
            self.value + other.value,
            self.low + other.low,
            self.high + other.high,
            least_sure(self.known, other.known),
        )

    def less(self, other: "Figure") -> "Figure":
        """The difference: its low is ours less their high."""
        return Figure(
            self.value - other.value,
            self.low - other.high,
            self.high - other.low,
            least_sure(self.known, other.known),
        )

    def scaled(self, factor: float) -> "Figure":
        return Figure(self.value * factor, self.low * factor, self.high * factor, self.known)
