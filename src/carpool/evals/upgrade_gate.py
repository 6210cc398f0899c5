"""Whether a new version may take over: a pure judgement on what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from carpool.evals.compare import Comparison
from carpool.evals.finding import Severity
from carpool.evals.short_bench import BenchFigures

TTFT_SLACK_MS = 20.0
"""Of a few milliseconds a ratio says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """`max_slowdown`: the new version may have 1/`max_slowdown` of the old one's tokens a
    second, and `max_slowdown` times its median TTFT."""

    max_slowdown: float = 1.25


@dataclass(frozen=True, slots=True)
class Judgement:
    """`reasons` are why it may not; `notes` what is worth knowing all the same."""

    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def has_passed(self) -> bool:
        return not self.reasons


def judge_upgrade(
    comparisons: Sequence[Comparison],
    old: BenchFigures | None,
    new: BenchFigures | None,
    options: GateOptions,
) -> Judgement:
    """Figures are None where no load was run."""
    reasons: list[str] = []
    notes: list[str] = []
    for comparison in comparisons:
        for finding in comparison.findings:
            told = f"{comparison.new.info.set_name}: {finding.sentence}"
            (reasons if finding.severity is Severity.ALARM else notes).append(told)
        if not comparison.new.is_complete:
            reasons.append(f"{comparison.new.info.set_name}: not all of it was run")
    if old is not None and new is not None:
        reasons += _slower(old, new, options.max_slowdown)
        notes += [f"the load: {doubt}" for doubt in dict.fromkeys((*old.doubts, *new.doubts))]
    return Judgement(tuple(reasons), tuple(notes))


def _slower(old: BenchFigures, new: BenchFigures, most: float) -> list[str]:
    reasons = []
    if new.num_failed > old.num_failed:
        reasons.append(
            f"under load {new.num_failed} of {new.num_requests} requests failed "
            f"(before {old.num_failed} of {old.num_requests})"
        )
    if new.output_tokens_per_s * most < old.output_tokens_per_s:
        reasons.append(
            f"it generates {new.output_tokens_per_s:.1f} tokens/s, before "
            f"{old.output_tokens_per_s:.1f}: slower by more than {most:g} times"
        )
    before, after = old.ttft_p50_ms, new.ttft_p50_ms
    if before is not None and after is not None and after > most * before + TTFT_SLACK_MS:
        reasons.append(
            f"its median TTFT is {after:.0f} ms, before {before:.0f} ms: slower by more than "
            f"{most:g} times"
        )
    return reasons
