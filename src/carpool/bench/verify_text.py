"""What `carpool verify` found, for a screen."""

from collections.abc import Iterator, Sequence
from math import isinf

from carpool.bench.capacity_search import FoundCapacity, Outcome
from carpool.bench.plan_check import PlanCheck, Row, last_verdicts
from carpool.planning.figure import GIB, Figure
from carpool.planning.plan import Plan


def verify_as_text(check: PlanCheck) -> str:
    parts = [
        headline(check),
        "\n".join(_rows(check)),
        "\n".join(_list("Why", check.reasons())),
        "\n".join(_list("At double", [line] if (line := check.degradation()) else [])),
        "\n".join(_levels(check)),
        "\n".join(_list("Measured of the engine", list(engine_lines(check)))),
    ]
    return "\n\n".join(part for part in parts if part)


def headline(check: PlanCheck) -> str:
    """The answer, in two lines or three."""
    config = check.verified.config
    lines = [verdict_line(check), capacity_line(check)]
    if check.verified.ended:
        lines.append(f"Cut short: {check.verified.ended}.")
    lines.append(
        f"Requests of {config.prompt_tokens} prompt and {config.output_tokens} output tokens on "
        f"average, {check.verified.target}, {check.verified.seconds:.0f} s."
    )
    return "\n".join(lines)


def verdict_line(check: PlanCheck) -> str:
    search, found = check.verified.config.search, check.verified.found
    name = "the plan" if check.plan is not None else "the concurrency asked for"
    planned = f"{search.planned} at once, p99 TTFT within {search.tolerance_s:g} s"
    if check.holds:
        return f"HOLDS: {name}, {planned}."
    if found.high is not None and found.high <= search.planned:
        return f"DOES NOT HOLD: {name}, {planned}."
    return f"UNRESOLVED: {name}, {planned}."


def capacity_line(check: PlanCheck) -> str:
    found = check.verified.found
    return f"Capacity: {_capacity(found)}{_bracket(found)}."


def _capacity(found: FoundCapacity) -> str:
    match found.outcome:
        case Outcome.RESOLVED:
            return f"{found.max_num_seqs} requests at once"
        case Outcome.AT_LEAST:
            return f"at least {found.max_num_seqs} requests at once"
        case Outcome.TOO_SLOW:
            return "none: one request alone takes longer than that"
        case _:
            if found.high is None and not found.low:
                return "unresolved, nothing is sure yet"
            return f"unresolved, about {found.max_num_seqs} requests at once"


def _bracket(found: FoundCapacity) -> str:
    parts = []
    if found.low:
        parts.append(f"{found.low} holds")
    if found.high is not None:
        parts.append(f"{found.high} does not")
    if not parts:
        return ""
    odd = "" if found.is_monotone else "; a higher level held where a lower one failed"
    return f" ({', '.join(parts)}; {found.confidence:.0%} sure{odd})"


def comparison_cells(check: PlanCheck) -> list[list[str]]:
    """Predicted against measured; the first row is the head."""
    head = ["", "predicted", "measured", "off by", ""]
    return [head, *(_cells(row) for row in check.rows())]


def _cells(row: Row) -> list[str]:
    error = "-" if row.error is None else f"{row.error:+.0%}"
    measured = "-" if row.measured is None else number(row.measured)
    known = "" if row.predicted is None else row.source
    if row.predicted is not None and not known.startswith("measured"):
        known += f", {row.predicted.known}"
    unit = f" {row.unit}" if row.unit else ""
    return [row.name, predicted(row.predicted) + unit, measured + unit, error, known]


def _rows(check: PlanCheck) -> Iterator[str]:
    yield "Predicted and measured"
    if check.plan is None:
        yield f"  no plan: {check.no_plan}"
    yield from aligned(comparison_cells(check))


def level_cells(check: PlanCheck) -> list[list[str]]:
    """All levels, the first row is the head."""
    head = ["at once", "requests", "failed", "TTFT", "p99", "tok/s each", "tok/s in all", "verdict"]
    verdicts = last_verdicts(check.verified.levels)
    return [
        head,
        *(
            [
                str(level.concurrency),
                str(level.num_requests),
                str(level.num_failed),
                f"{number(level.ttft_s)} s",
                f"{number(level.ttft_p99_s)} s",
                "-" if (rate := level.stream_tokens_per_s) is None else number(rate),
                number(level.tokens_per_s),
                verdicts[level.concurrency].value if level.concurrency in verdicts else "",
            ]
            for level in check.verified.measured
        ),
    ]


def _levels(check: PlanCheck) -> Iterator[str]:
    yield "All levels, each with so many requests in flight at any time"
    yield from aligned(level_cells(check))


def engine_lines(check: PlanCheck) -> Iterator[str]:
    """Step times, memory, doubts."""
    fit, memory = check.fit, check.verified.memory
    if fit is not None:
        yield (
            f"step time: {1e3 * fit.step_fixed_s:.3g} ms + {1e3 * fit.step_per_seq_s:.3g} ms for "
            f"each sequence in it; prefill: {fit.prefill_tokens_per_s:,.0f} tokens/s"
        )
    if memory is not None:
        line = (
            f"memory ({memory.source}): {memory.first_bytes / GIB:.2f} GiB at first, "
            f"{memory.peak_bytes / GIB:.2f} GiB at most"
        )
        if check.overhead_bytes is not None:
            line += f", {check.overhead_bytes / GIB:.2f} GiB of it neither weights nor KV cache"
        yield line
    for level in check.verified.levels:
        for doubt in level.result.doubts:
            yield f"at {level.concurrency} at once, not certified: {doubt}"
    notes = dict.fromkeys(note for level in check.verified.levels for note in level.result.notes)
    # How sure a p99 is, the verdicts say.
    yield from (note for note in notes if "99th percentile" not in note)


def plan_line(plan: Plan) -> str:
    """What is about to be held against measurements."""
    people = plan.people
    who = f"{people.num_people} people ({plan.request.profile.name})" if people else "nobody"
    return (
        f"the plan: {plan.pool.kv_tokens:,} KV tokens, "
        f"{people.num_seats if people else 0} sequences, {who}"
    )


def predicted(figure: Figure | None) -> str:
    if figure is None:
        return "-"
    if figure.low == figure.high:
        return number(figure.value)
    return f"{number(figure.low)} to {number(figure.high)}"


def number(value: float) -> str:
    """With three digits."""
    if isinf(value):
        return "never"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The first column to the left, the rest to the right, the last one to the left if it is
    words."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        yield "  " + "  ".join([*cells, row[-1]]).rstrip()


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield title
        yield from (f"  {line}" for line in lines)
