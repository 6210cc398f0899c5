"""Runs and comparisons, for people."""

from collections.abc import Iterable, Sequence

from carpool.evals.compare import CaseComparison, Comparison, Tally
from carpool.evals.eval_run import EvalRun, Result
from carpool.evals.finding import Severity
from carpool.evals.statistics import median, wilson

RUN_COLUMNS = ("case", "passed", "95 %", "ended", "prompt", "output", "first ms", "total ms")
COMPARE_COLUMNS = (
    "case",
    "old",
    "new",
    "change, 95 %",
    "ended",
    "prompt",
    "output",
    "total ms",
    "",
)
_NUM_SHOWN = 8
NONE = "-"


def run_rows(tallies: Iterable[tuple[str, Tally]]) -> list[list[str]]:
    return [
        [
            key,
            f"{tally.num_passed}/{tally.num}",
            f"{tally.interval.low:.0%}-{tally.interval.high:.0%}",
            _reasons(tally),
            _tokens(tally),
            _number(tally.completion_tokens),
            _ms(tally.first_s),
            _ms(tally.total_s),
        ]
        for key, tally in tallies
    ]


def run_sentences(run: EvalRun) -> list[str]:
    """What came of it, and why what failed did."""
    results = run.results
    num_passed = sum(result.has_passed for result in results)
    rate = wilson(num_passed, len(results))
    lines = [
        f"{num_passed} of {len(results)} answers of {run.info.model} passed "
        f"(95 %: {rate.low:.1%} to {rate.high:.1%})."
    ]
    if not run.is_complete:
        lines.append(
            f"The run broke off: {len(results)} of {run.info.num_planned} requests were made."
        )
    first_of_case: dict[str, Result] = {}
    for result in results:
        if not result.has_passed:
            first_of_case.setdefault(result.key, result)
    lines += [f"  {key}: {result.reason}" for key, result in first_of_case.items()]
    return lines


def comparison_rows(cases: Sequence[CaseComparison]) -> list[list[str]]:
    return [
        [
            case.key,
            f"{case.old.num_passed}/{case.old.num}",
            f"{case.new.num_passed}/{case.new.num}",
            f"{case.difference.low:+.0%} to {case.difference.high:+.0%}",
            _changed(_reasons(case.old), _reasons(case.new)),
            _changed(_tokens(case.old), _tokens(case.new)),
            _changed(_number(case.old.completion_tokens), _number(case.new.completion_tokens)),
            _changed(_ms(case.old.total_s), _ms(case.new.total_s)),
            _mark(case),
        ]
        for case in cases
    ]


def comparison_sentences(comparison: Comparison) -> list[str]:
    lines = []
    for finding in comparison.findings:
        word = "ALARM" if finding.severity is Severity.ALARM else "note"
        lines.append(f"{word}: {finding.sentence}")
        if finding.cases:
            more = len(finding.cases) - _NUM_SHOWN
            shown = ", ".join(finding.cases[:_NUM_SHOWN])
            lines.append(f"  in {shown}{f' and {more} more' if more > 0 else ''}")
    if comparison.num_worse or comparison.num_better:
        lines.append(
            f"{comparison.num_worse} cases passed before and fail now, {comparison.num_better} the "
            f"other way (McNemar's exact p = {comparison.flip_p:.2g})."
        )
    lines.append(_latency(comparison.cases))
    verdict = "NOT the same" if comparison.is_alarming else "no difference beyond chance"
    lines.append(f"Verdict: {verdict} (family-wise error rate {comparison.alpha:g}).")
    return lines


def _latency(cases: Sequence[CaseComparison]) -> str:
    ratios = [
        case.new.total_s / case.old.total_s
        for case in cases
        if case.old.total_s and case.new.total_s
    ]
    ratio = median(ratios)
    if ratio is None:
        return "No case was answered on both sides."
    return f"Answers take {ratio:.2f} times as long as before (median over {len(ratios)} cases)."


def _mark(case: CaseComparison) -> str:
    if case.is_worse:
        return "worse"
    if case.has_flipped:
        return "flipped"
    return (
        "same" if case.old.num_passed * case.new.num == case.new.num_passed * case.old.num else ""
    )


def _changed(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _reasons(tally: Tally) -> str:
    if len(tally.finish_reasons) == 1:
        return next(iter(tally.finish_reasons))
    return ", ".join(f"{count} {name}" for name, count in tally.finish_reasons.items()) or NONE


def _tokens(tally: Tally) -> str:
    return "/".join(map(str, tally.prompt_tokens)) or NONE


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.0f}"


def _ms(seconds: float | None) -> str:
    return NONE if seconds is None else f"{1e3 * seconds:,.0f}"
