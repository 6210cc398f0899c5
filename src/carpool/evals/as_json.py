"""Runs and comparisons, for programs."""

from dataclasses import asdict
from typing import Any

from carpool.evals.compare import CaseComparison, Comparison, Tally
from carpool.evals.eval_run import EvalRun


def run_as_dict(run: EvalRun, tallies: list[tuple[str, Tally]]) -> dict[str, Any]:
    """Without the answers, which are in the run's file."""
    return {
        "set": run.info.set_name,
        "set_sha256": run.info.set_sha256,
        "url": run.info.url,
        "model": run.info.model,
        "engine_version": run.template.version,
        "is_complete": run.is_complete,
        "num_planned": run.info.num_planned,
        "num_answers": len(run.results),
        "num_passed": sum(result.has_passed for result in run.results),
        "cases": {key: _tally(tally) for key, tally in tallies},
    }


def comparison_as_dict(comparison: Comparison) -> dict[str, Any]:
    return {
        "is_alarming": comparison.is_alarming,
        "alpha": comparison.alpha,
        "num_worse": comparison.num_worse,
        "num_better": comparison.num_better,
        "flip_p": comparison.flip_p,
        "findings": [
            {
                "kind": finding.kind.value,
                "severity": finding.severity.value,
                "sentence": finding.sentence,
                "cases": list(finding.cases),
                "p_value": finding.p_value,
            }
            for finding in comparison.findings
        ],
        "cases": {case.key: _case(case) for case in comparison.cases},
    }


def _case(case: CaseComparison) -> dict[str, Any]:
    return {
        "tags": list(case.tags),
        "old": _tally(case.old),
        "new": _tally(case.new),
        "difference_95": list(case.difference),
        "is_worse": case.is_worse,
        "has_flipped": case.has_flipped,
    }


def _tally(tally: Tally) -> dict[str, Any]:
    return asdict(tally) | {"interval": list(tally.interval)}
