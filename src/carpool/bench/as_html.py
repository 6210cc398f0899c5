"""Results as one page that needs nothing but itself: no script, no font, no request."""

import math
import time
from collections.abc import Iterator, Sequence
from html import escape

from carpool import __version__
from carpool.bench.as_text import (
    ENDED_BY,
    distribution_rows,
    engine_line,
    lag_line,
    summary_rows,
    throughput_line,
)
from carpool.bench.bench_run import BenchRun
from carpool.bench.distribution import Distribution
from carpool.bench.level_result import LevelResult
from carpool.bench.load import OpenLoop
from carpool.bench.svg import Point, Series, plot

MAX_POINTS = 2000
_STYLE = """
:root { color-scheme: light dark; --line: #d0d7de; --soft: #59636e; --bad: #cf222e }
@media (prefers-color-scheme: dark) { :root { --line: #3d444d; --soft: #9198a1; --bad: #ff7b72 } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1360px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem; margin-bottom: 0 } h2 { font-size: 1.2rem; margin-top: 2.5rem }
p.soft { color: var(--soft); margin-top: 0 } .bad { color: var(--bad) }
.wide { overflow-x: auto; margin-bottom: 1rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25rem .8rem; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr));
  gap: 1.5rem }
figure { margin: 0 } figcaption { font-weight: 600 }
svg { width: 100%; height: auto } svg text { font-size: 11px; fill: currentColor }
svg .grid { stroke: var(--line) }
svg .limit { stroke: var(--bad); stroke-dasharray: 5 4 }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; margin: 0; padding: 0;
  font-size: 12px }
.legend span { display: inline-block; width: .8em; height: .8em; margin-right: .4em }
"""


def page(title: str, body: str) -> str:
    """A whole document around `body`, which is HTML."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def as_html(run: BenchRun) -> str:
    when = run.results[0].started_at if run.results else time.time()
    moment = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(when))
    body = [
        f"<h1>{escape(run.target.model)} under load</h1>",
        f'<p class="soft">{escape(str(run.target.address))}, {moment}, carpool bench '
        f"{__version__}</p>",
    ]
    if run.is_stopped:
        body.append('<p class="bad">Stopped by hand: what was measured until then.</p>')
    if run.trouble:
        body.append(f'<p class="bad">{escape(run.trouble)}</p>')
    body += [f"<p>{escape(note)}</p>" for note in run.notes]
    if len(run.results) > 1:
        body += [table(list(summary_rows(run.results))), _comparison(run.results)]
    body += [part for result in run.results for part in level_section(result)]
    return page(f"{run.target.model} under load", "".join(body))


def table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *others = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in others
    )
    return f'<div class="wide"><table><tr>{cells}</tr>{lines}</table></div>'


def figure(caption: str, drawing: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{drawing}</figure>"


def level_section(result: LevelResult) -> Iterator[str]:
    """A heading, the figures and the plots of one level."""
    yield f"<h2>{escape(result.level.name)}</h2>"
    yield (
        f"<p>{result.num_requests:,} requests in {result.window_s:.1f} s, "
        f"{result.num_failed:,} failed; {ENDED_BY[result.ended_by]}.</p>"
    )
    for kind, count in result.errors.items():
        yield f'<p class="bad">{count:,} × {escape(kind)}: {escape(result.error_texts[kind])}</p>'
    head = ("", "mean", "p50", "p90", "p99", "95 % interval of p99")
    yield table([head, *distribution_rows(result)])
    yield f"<p>{escape(throughput_line(result))}.</p>"
    if result.level.slo:
        yield (
            f"<p>Goodput {result.goodput_share:.1%} of all requests, "
            f"{result.goodput_per_s:.2f}/s ({escape(str(result.level.slo))}).</p>"
        )
    if result.engine is not None and (line := engine_line(result.engine)):
        yield f"<p>Engine: {escape(line)}.</p>"
    yield f"<p>Load generator: {escape(lag_line(result))}.</p>"
    for doubt in result.doubts:
        yield f'<p class="bad">Not certified: {escape(doubt)}.</p>'
    yield from (f"<p>Note: {escape(note)}.</p>" for note in result.notes)
    yield f'<div class="plots">{"".join(_level_plots(result))}</div>'


def _level_plots(result: LevelResult) -> Iterator[str]:
    slo = result.level.slo
    times = [
        ((each.due - result.begin), each.ttft_ms)
        for each in result.records
        if each.ttft_ms is not None
    ]
    failed = [((each.due - result.begin), 0.0) for each in result.records if not each.is_ok]
    series = [Series("answered", thinned(times), True), Series("failed", thinned(failed), True)]
    yield figure(
        "Time to first token of each request",
        plot(series, "seconds since the warm-up", "ms", y_limit=slo.ttft_ms),
    )
    shares = [Series("TTFT", cumulative(result.ttft_ms))]
    yield figure("Requests whose first token came within", plot(shares, "ms", "%"))
    yield figure(
        "Output tokens a second",
        plot([Series("", token_rates(result))], "seconds since the warm-up", "tok/s"),
    )
    yield figure(
        "Gaps between tokens within", plot([Series("", cumulative(result.itl_ms))], "ms", "%")
    )


def _comparison(results: Sequence[LevelResult]) -> str:
    places = [load_size(result) for result in results]

    def series(name: str, values: Sequence[float | None]) -> Series:
        known = [
            (place, value)
            for place, value in zip(places, values, strict=True)
            if value is not None and not math.isinf(value)
        ]
        return Series(name, sorted(known))

    ttft = [
        series("p50", [each.ttft_ms.p50.value for each in results]),
        series("p99", [each.ttft_ms.p99.value for each in results]),
    ]
    tpot = [
        series("p50", [each.tpot_ms.p50.value for each in results]),
        series("p99", [each.tpot_ms.p99.value for each in results]),
    ]
    rate = [series("", [each.output_tokens_per_s for each in results])]
    limits = results[0].level.slo
    return (
        '<div class="plots">'
        + figure("Time to first token", plot(ttft, "load", "ms", y_limit=limits.ttft_ms))
        + figure("Time per output token", plot(tpot, "load", "ms", y_limit=limits.tpot_ms))
        + figure("Output tokens a second, all streams", plot(rate, "load", "tok/s"))
        + "</div>"
    )


def load_size(result: LevelResult) -> float:
    """What to put a level at on an axis: streams, people, or requests a second."""
    load = result.level.load
    if not isinstance(load, OpenLoop):
        return float(load.size)
    span = load.offsets[-1] - load.offsets[0]
    return (len(load.offsets) - 1) / span if span > 0 else float(len(load.offsets))


def cumulative(figures: Distribution) -> Sequence[Point]:
    """Per cent of all samples, missing ones included, at or below a value."""
    step = max(1, figures.count // 400)
    values = figures.values
    places = [*range(0, len(values), step)]
    if values and places[-1] != len(values) - 1:
        places.append(len(values) - 1)
    return [(values[place], 100 * (place + 1) / figures.count) for place in places]


def token_rates(result: LevelResult) -> Sequence[Point]:
    """Tokens of the measured requests in each of about 100 equal parts of the window."""
    num_parts = min(100, max(5, int(result.window_s)))
    width = result.window_s / num_parts
    if width <= 0:
        return []
    counts = [0.0] * num_parts
    for record in result.records:
        for moment in record.token_times:
            part = int((moment - result.begin) / width)
            if 0 <= part < num_parts:
                counts[part] += record.output_tokens / len(record.token_times)
    return [((part + 0.5) * width, count / width) for part, count in enumerate(counts)]


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Few enough for a page, with the highest of those that are left out kept."""
    if len(points) <= MAX_POINTS:
        return points
    step = math.ceil(len(points) / MAX_POINTS)
    return [
        max(points[start : start + step], key=lambda point: point[1])
        for start in range(0, len(points), step)
    ]
