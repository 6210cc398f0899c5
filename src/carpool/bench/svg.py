"""Plots as inline SVG: no script, no request to anywhere. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 16, 44
COLOURS = ("#1f6feb", "#d1242f", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#6e7781")
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points in order of x; `is_dots`: not joined by a line."""

    name: str
    points: Sequence[Point]
    is_dots: bool = False


def plot(
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    is_log_y: bool = False,
    y_limit: float | None = None,
) -> str:
    """Axes from 0 (a logarithmic y from the least value). `y_limit` is drawn as a dashed line.
    Without a point to draw: a sentence instead."""
    shown = [each for each in series if each.points]
    if not shown:
        return "<p>nothing to plot</p>"
    axes = _Axes.around([point for each in shown for point in each.points], is_log_y, y_limit)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(f"{y_label} by {x_label}", quote=True)}">',
        *axes.lines(x_label, y_label),
    ]
    if y_limit is not None:
        y = axes.y(y_limit)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="limit"/>'
        )
    for number, each in enumerate(shown):
        parts.append(_drawn(each, axes, COLOURS[number % len(COLOURS)]))
    parts.append("</svg>")
    return "".join(parts) + _legend(shown)


def _drawn(series: Series, axes: "_Axes", colour: str) -> str:
    places = [(axes.x(x), axes.y(y)) for x, y in series.points]
    if series.is_dots or len(places) == 1:
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2"/>' for x, y in places)
        return f'<g fill="{colour}" fill-opacity="0.6">{dots}</g>'
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.6"/>'


def _legend(series: Sequence[Series]) -> str:
    if len(series) == 1 and not series[0].name:
        return ""
    items = "".join(
        f'<li><span style="background:{COLOURS[number % len(COLOURS)]}"></span>'
        f"{escape(each.name)}</li>"
        for number, each in enumerate(series)
    )
    return f'<ul class="legend">{items}</ul>'


@dataclass(frozen=True, slots=True)
class _Axes:
    x_max: float
    y_min: float
    y_max: float
    is_log_y: bool

    @classmethod
    def around(cls, points: Sequence[Point], is_log_y: bool, y_limit: float | None) -> "_Axes":
        highest = max([y for _, y in points] + ([y_limit] if y_limit is not None else []))
        x_max = max(x for x, _ in points) or 1.0
        if not is_log_y:
            return cls(x_max, 0.0, 1.05 * highest or 1.0, False)
        least = min((y for _, y in points if y > 0), default=1.0)
        least = 10 ** math.floor(math.log10(least))
        return cls(x_max, least, max(10 * least, 1.2 * highest), True)

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * value / self.x_max

    def y(self, value: float) -> float:
        if self.is_log_y:
            value = max(value, self.y_min)
            share = math.log(value / self.y_min) / math.log(self.y_max / self.y_min)
        else:
            share = value / self.y_max
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * min(1.0, max(0.0, share))

    def lines(self, x_label: str, y_label: str) -> Iterator[str]:
        for tick in ticks(self.x_max):
            place = f'x="{self.x(tick):.1f}" y="{HEIGHT - BOTTOM + 16}"'
            yield f'<text {place} text-anchor="middle">{tick:,g}</text>'
        for tick in self._y_ticks():
            y = self.y(tick)
            yield (
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:,g}</text>'
            )
        yield (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
            f"{escape(x_label)}</text>"
            f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_label)}</text>"
        )

    def _y_ticks(self) -> Sequence[float]:
        if not self.is_log_y:
            return ticks(self.y_max)
        first, last = math.log10(self.y_min), math.log10(self.y_max)
        decades = [10.0**power for power in range(round(first), math.floor(last) + 1)]
        return (
            decades
            if len(decades) > 2
            else [d * m for d in decades for m in (1, 2, 5) if d * m <= self.y_max]
        )


def ticks(highest: float, most: int = 6) -> list[float]:
    """Round numbers from 0 up to `highest`, about `most` of them."""
    step = 10.0 ** math.floor(math.log10(highest / most)) if highest > 0 else 1.0
    step = next(step * m for m in (1, 2, 5, 10) if highest / (step * m) <= most)
    return [number * step for number in range(math.floor(highest / step + 1e-9) + 1)]
