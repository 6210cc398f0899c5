"""Results as lines for people. Pure."""

import math
from collections.abc import Iterator, Sequence

from carpool.bench.distribution import Distribution, Quantile
from carpool.bench.engine_metrics import EngineChange
from carpool.bench.level_result import LevelResult

ENDED_BY = {
    "max_requests": "as many requests as asked for",
    "max_seconds": "the time was over",
    "max_tokens": "as many tokens as allowed",
    "max_errors": "too many errors",
    "prompts": "no prompts were left",
    "arrivals": "all requests were sent",
    "stopped": "stopped by hand",
}
FASTER_THAN = "tok/s, faster than"
ROWS = (
    ("TTFT ms", "ttft_ms"),
    ("first answer ms", "first_answer_ms"),
    ("TPOT ms", "tpot_ms"),
    ("ITL ms", "itl_ms"),
    ("end to end ms", "e2e_ms"),
    ("queue ms", "queue_ms"),
    ("TTFT after queue ms", "admitted_ttft_ms"),
    (FASTER_THAN, "stream_tokens_per_s"),
)
_HEAD = ("", "mean", "p50", "p90", "p99", "95 % interval of p99")


def level_lines(result: LevelResult) -> Iterator[str]:
    """One level, in full."""
    yield f"{result.level.name}: {result.target}"
    yield (
        f"  {result.num_requests:,} requests in {result.window_s:.1f} s, {result.num_failed:,} "
        f"failed, {result.num_warm_up:,} more in the warm-up; {ENDED_BY[result.ended_by]}"
    )
    for kind, number in result.errors.items():
        yield f"  {number:,} x {kind}: {result.error_texts[kind]}"
    yield ""
    yield from _aligned([_HEAD, *distribution_rows(result)])
    yield ""
    yield f"  {throughput_line(result)}"
    if result.level.slo:
        yield (
            f"  goodput {result.goodput_share:.1%} of all requests, "
            f"{result.goodput_per_s:.2f}/s ({result.level.slo})"
        )
    if result.engine is not None and (line := engine_line(result.engine)):
        yield f"  engine: {line}"
    yield f"  load generator: {lag_line(result)}"
    for doubt in result.doubts:
        yield f"  NOT CERTIFIED: {doubt}"
    for note in result.notes:
        yield f"  note: {note}"


def distribution_rows(result: LevelResult) -> Iterator[tuple[str, ...]]:
    """Those that say something: an answer without reasoning has one first token, not two."""
    for name, attribute in ROWS:
        figures: Distribution = getattr(result, attribute)
        is_same = attribute == "first_answer_ms" and figures.values == result.ttft_ms.values
        if not figures.count or is_same:
            continue
        # The slow end is what people complain of: 99 of 100 streams are faster than this.
        p90, p99 = (0.1, 0.01) if name == FASTER_THAN else (0.9, 0.99)
        last = figures.quantile(p99)
        yield (
            name,
            number(figures.mean),
            number(figures.p50.value),
            number(figures.quantile(p90).value),
            number(last.value),
            interval(last),
        )


def summary_rows(results: Sequence[LevelResult]) -> Iterator[tuple[str, ...]]:
    """A line a level, with a head."""
    yield (
        "load",
        "requests",
        "failed",
        "TTFT p50",
        "TTFT p99",
        "TPOT p50",
        "TPOT p99",
        "tok/s stream",
        "tok/s all",
        "goodput",
        "certified",
    )
    for result in results:
        yield (
            result.level.name,
            f"{result.num_requests:,}",
            f"{result.num_failed:,}",
            number(result.ttft_ms.p50.value),
            number(result.ttft_ms.p99.value),
            number(result.tpot_ms.p50.value),
            number(result.tpot_ms.p99.value),
            number(result.stream_tokens_per_s.p50.value),
            number(result.output_tokens_per_s),
            f"{result.goodput_share:.1%}",
            "yes" if result.is_certified else "no",
        )


def summary_lines(results: Sequence[LevelResult]) -> Iterator[str]:
    yield from _aligned(list(summary_rows(results)))


def throughput_line(result: LevelResult) -> str:
    return (
        f"{number(result.output_tokens_per_s)} tok/s out, {number(result.prompt_tokens_per_s)} "
        f"tok/s in, {result.requests_per_s:.2f} requests/s, "
        f"{result.mean_in_flight:.1f} in flight on average"
    )


def lag_line(result: LevelResult) -> str:
    lag = result.lag
    verdict = "certified" if result.is_certified else "not certified"
    return (
        f"late by {lag.p99_ms:.1f} ms at p99, {lag.max_ms:.1f} ms at most; "
        f"{lag.cpu_share:.0%} of a core; {verdict}"
    )


def engine_line(engine: EngineChange) -> str:
    parts = []
    if engine.preemptions is not None:
        parts.append(f"{engine.preemptions:,} preemptions")
    if engine.mean_kv_usage is not None and engine.max_kv_usage is not None:
        parts.append(
            f"KV use {engine.mean_kv_usage:.0%} on average, {engine.max_kv_usage:.0%} at most"
        )
    if engine.prefix_hit_share is not None:
        parts.append(f"{engine.prefix_hit_share:.1%} of prompt tokens from its prefix cache")
    if engine.max_running is not None:
        parts.append(
            f"{engine.max_running:,} running and {engine.max_waiting or 0:,} waiting at most"
        )
    return ", ".join(parts)


def number(value: float | None) -> str:
    """Three significant digits or more, whatever the size."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "never"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def interval(quantile: Quantile) -> str:
    low = "?" if quantile.low is None else number(quantile.low)
    high = "?" if quantile.high is None else number(quantile.high)
    return f"{'' if quantile.is_resolved else 'too few: '}{low} .. {high}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        first, *others = row
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        yield f"  {'  '.join(cells)}"
