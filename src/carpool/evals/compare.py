"""Compares two runs of an eval set: what is worse, and could that be chance?"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from carpool.errors import CarpoolError
from carpool.evals.compare_templates import template_findings
from carpool.evals.eval_run import EvalRun, Result
from carpool.evals.finding import Finding, Severity
from carpool.evals.signals import SIGNALS, FindingKind, has_failed
from carpool.evals.statistics import (
    Counts,
    ExactTest,
    Interval,
    median,
    more_than_before,
    newcombe,
    sign_p,
    significant,
    wilson,
)

ALPHA = 0.01
"""How often two runs of one engine may raise an alarm, at the most."""


class CompareError(CarpoolError):
    """Two runs that have nothing in common."""


@dataclass(frozen=True, slots=True)
class Tally:
    """One side of a case. Medians are None where nothing was measured."""

    num: int
    num_passed: int
    interval: Interval
    finish_reasons: Mapping[str, int]
    prompt_tokens: tuple[int, ...]
    completion_tokens: float | None
    first_s: float | None
    total_s: float | None
    reason: str | None
    """Why the first that failed did."""

    @property
    def is_passing(self) -> bool:
        """By the majority of its repeats."""
        return 2 * self.num_passed > self.num


@dataclass(frozen=True, slots=True)
class CaseComparison:
    """`difference` is the 95 % interval of new pass rate - old; `is_worse`: by more than chance."""

    key: str
    tags: tuple[str, ...]
    old: Tally
    new: Tally
    difference: Interval
    is_worse: bool = False

    @property
    def has_flipped(self) -> bool:
        return self.old.is_passing is not self.new.is_passing


@dataclass(frozen=True, slots=True)
class Comparison:
    """`findings`: alarms first. `flip_p` is McNemar's exact p, two-sided, of the cases that
    flipped, by the majority of their repeats."""

    old: EvalRun
    new: EvalRun
    cases: tuple[CaseComparison, ...]
    findings: tuple[Finding, ...]
    alpha: float
    flip_p: float

    @property
    def is_alarming(self) -> bool:
        return any(finding.severity is Severity.ALARM for finding in self.findings)

    @property
    def num_worse(self) -> int:
        return sum(case.has_flipped and case.old.is_passing for case in self.cases)

    @property
    def num_better(self) -> int:
        return sum(case.has_flipped and case.new.is_passing for case in self.cases)


Pairs = Mapping[str, tuple[list[Result], list[Result]]]


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """That something is as it was. `is_seen` is counted over the cases `keys`."""

    kind: FindingKind
    sentence: str
    is_seen: Callable[[Result], bool | None]
    keys: tuple[str, ...]


def compare(old: EvalRun, new: EvalRun, alpha: float = ALPHA) -> Comparison:
    """Raises CompareError."""
    pairs = _pairs(old, new)
    hypotheses = list(_hypotheses(pairs))
    counts = [_counts(pairs, each) for each in hypotheses]
    tests = [more_than_before(each.values()) for each in counts]
    is_significant = significant(tests, alpha)
    findings = [*_differences(old, new, pairs), *template_findings(old, new, pairs)]
    worse: set[str] = set()
    for hypothesis, seen, test, is_found in zip(
        hypotheses, counts, tests, is_significant, strict=True
    ):
        if is_found:
            findings.append(_finding(hypothesis, seen, test))
            if hypothesis.kind is FindingKind.WORSE and len(hypothesis.keys) == 1:
                worse.update(hypothesis.keys)
    findings += _length_findings(pairs, alpha)
    cases = tuple(_case(key, *pair, is_worse=key in worse) for key, pair in pairs.items())
    flips = [case for case in cases if case.has_flipped]
    num_worse = sum(case.old.is_passing for case in flips)
    return Comparison(
        old,
        new,
        cases,
        tuple(sorted(findings, key=lambda each: each.severity is not Severity.ALARM)),
        alpha,
        sign_p(num_worse, len(flips) - num_worse),
    )


def _pairs(old: EvalRun, new: EvalRun) -> Pairs:
    of_old, of_new = old.by_case(), new.by_case()
    pairs = {key: (results, of_new[key]) for key, results in of_old.items() if key in of_new}
    if not pairs:
        raise CompareError(
            f"the runs of {old.info.set_name} and {new.info.set_name} have no case in common"
        )
    return pairs


def _hypotheses(pairs: Pairs) -> Iterable[_Hypothesis]:
    """Each signal over all cases; passing over all, over each tag and over each case."""
    everything = tuple(pairs)
    for signal in SIGNALS:
        yield _Hypothesis(signal.kind, signal.sentence, signal.is_seen, everything)
    yield _Hypothesis(FindingKind.WORSE, "more answers fail", has_failed, everything)
    by_tag: dict[str, list[str]] = {}
    for key, (results, _) in pairs.items():
        for tag in results[0].tags:
            by_tag.setdefault(tag, []).append(key)
    for tag, keys in by_tag.items():
        if 1 < len(keys) < len(everything):
            sentence = f"more answers of cases tagged {tag} fail"
            yield _Hypothesis(FindingKind.WORSE, sentence, has_failed, tuple(keys))
    if len(everything) > 1:
        for key in everything:
            yield _Hypothesis(FindingKind.WORSE, f"{key} fails more often", has_failed, (key,))


def _counts(pairs: Pairs, hypothesis: _Hypothesis) -> dict[str, Counts]:
    counts = {}
    for key in hypothesis.keys:
        old, new = (
            [seen for seen in map(hypothesis.is_seen, results) if seen is not None]
            for results in pairs[key]
        )
        counts[key] = Counts(sum(old), len(old), sum(new), len(new))
    return counts


def _finding(hypothesis: _Hypothesis, counts: Mapping[str, Counts], test: ExactTest) -> Finding:
    old, num_old, new, num_new = (sum(column) for column in zip(*counts.values(), strict=True))
    rising = [key for key, case in counts.items() if _rate(case.new, case.num_new) > _rate(
        case.old, case.num_old
    )]  # fmt: skip
    return Finding(
        hypothesis.kind,
        Severity.ALARM,
        f"{hypothesis.sentence} ({new} of {num_new}, before {old} of {num_old}; p = {test.p:.2g})",
        tuple(rising),
        test.p,
    )


def _rate(count: int, total: int) -> float:
    return count / total if total else 0.0


def _differences(old: EvalRun, new: EvalRun, pairs: Pairs) -> Iterable[Finding]:
    """What makes the two runs hard to compare."""
    for name, run in (("old", old), ("new", new)):
        if not run.is_complete:
            done = f"{len(run.results)} of {run.info.num_planned} requests"
            yield Finding(
                FindingKind.INCOMPLETE, Severity.NOTICE, f"the {name} run broke off after {done}"
            )
    if old.info.set_sha256 != new.info.set_sha256:
        yield Finding(
            FindingKind.NOT_ALIKE,
            Severity.NOTICE,
            f"the runs are of two versions of the set; {len(pairs)} cases in both are compared",
        )
    elif old.info.temperature != new.info.temperature:
        yield Finding(
            FindingKind.NOT_ALIKE,
            Severity.NOTICE,
            f"the runs are at temperatures {old.info.temperature} and {new.info.temperature}",
        )


def _length_findings(pairs: Pairs, alpha: float) -> Iterable[Finding]:
    """By the sign test: in how many cases answers are longer, and in how many shorter."""
    longer: list[str] = []
    shorter: list[str] = []
    for key, (old, new) in pairs.items():
        before, after = _mean_completion(old), _mean_completion(new)
        if before is not None and after is not None and before != after:
            (longer if after > before else shorter).append(key)
    p = sign_p(len(longer), len(shorter))
    if p <= alpha:
        word = "longer" if len(longer) > len(shorter) else "shorter"
        most = max(longer, shorter, key=len)
        yield Finding(
            FindingKind.LENGTH_CHANGED,
            Severity.NOTICE,
            f"answers are {word} in {len(most)} of {len(longer) + len(shorter)} cases whose "
            f"length changed (p = {p:.2g})",
            tuple(most),
            p,
        )


def _case(key: str, old: list[Result], new: list[Result], *, is_worse: bool) -> CaseComparison:
    before, after = tally(old), tally(new)
    counts = Counts(before.num_passed, before.num, after.num_passed, after.num)
    return CaseComparison(key, old[0].tags, before, after, newcombe(counts), is_worse)


def tally(results: Sequence[Result]) -> Tally:
    answers = [result.answer for result in results if result.answer is not None]
    num_passed = sum(result.has_passed for result in results)
    reasons = Counter(answer.finish_reason or "none" for answer in answers)
    reasons.update(["error"] * (len(results) - len(answers)))
    prompts = {answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None}
    return Tally(
        num=len(results),
        num_passed=num_passed,
        interval=wilson(num_passed, len(results)),
        finish_reasons={name: count for name, count in reasons.most_common() if count},
        prompt_tokens=tuple(sorted(prompts)),
        completion_tokens=_mean_completion(results),
        first_s=median([answer.first_s for answer in answers if answer.first_s is not None]),
        total_s=median([answer.total_s for answer in answers]),
        reason=next((result.reason for result in results if not result.has_passed), None),
    )


def _mean_completion(results: Sequence[Result]) -> float | None:
    counts = [
        result.answer.completion_tokens
        for result in results
        if result.answer is not None and result.answer.completion_tokens is not None
    ]
    return sum(counts) / len(counts) if counts else None
