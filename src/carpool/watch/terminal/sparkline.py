"""A series in one line of text."""

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
GAP = " "


def sparkline(values: Sequence[float | None], width: int) -> str:
    """`width` bars, each as high as the highest of its share of the values; a space where there
    are none. The highest bar is the highest value."""
    if width < 1 or not values:
        return ""
    columns = [_highest(values, number, width) for number in range(width)]
    known = [value for value in columns if value is not None]
    top = max(known, default=0.0)
    return "".join(GAP if value is None else _bar(value, top) for value in columns)


def highest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _highest(values: Sequence[float | None], number: int, width: int) -> float | None:
    start = number * len(values) // width
    end = max(start + 1, (number + 1) * len(values) // width)
    return highest(values[start:end])


def _bar(value: float, top: float) -> str:
    if top <= 0 or value <= 0:
        return BARS[0]
    return BARS[min(len(BARS) - 1, int(value / top * len(BARS)))]
