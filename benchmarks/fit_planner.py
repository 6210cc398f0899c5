"""Fit what vLLM takes beside weights and KV cache, and say how well that does on new models.

    python -m benchmarks.fit_planner [--reports FILE] [--write]

For each span of versions in coefficients.json: `logits`, `hidden` and `forward` by a grid
search for the least mean absolute error of the reported activation peak, `non_torch_gib` by
medians; the median of graphs is printed, for the formula scales them by their number.
Cross-validation leaves one model out at a time, with all its reports: its activation peak and
its KV tokens are predicted with what the other models give. A span with few reports keeps what
it has. `--write` puts the result into coefficients.json.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from benchmarks.planner import (
    REPORTS,
    by_group,
    errors_of,
    is_memory_known,
    p90,
    predict,
    states_flags,
)
from benchmarks.planner_reports import Case, Unpredicted, make_case, read_reports
from carpool.errors import CarpoolError
from carpool.planning import coefficients as stored
from carpool.planning.coefficients import Coefficients, coefficients
from carpool.planning.engine_kind import EngineKind, Version
from carpool.planning.figure import GIB
from carpool.planning.memory import ActivationParts, activation_parts
from carpool.planning.settings import filled

FILE = Path(stored.__file__).with_name("coefficients.json")
LOGITS = [n / 20 for n in range(20, 240)]
HIDDEN = [1.0, 1.2, 1.4, 1.6, 2.0]
FORWARD = [3.0, 2.5, 3.5]
"""In the order in which ties are broken."""
FEWEST_MODELS = 3
FEWEST_REPORTS = 5
"""For a median to be taken over."""


class Peak(NamedTuple):
    """A report of the activation peak, in GiB, and what it is made of."""

    case: Case
    model: str
    gib: float
    parts: ActivationParts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reports", type=Path, default=REPORTS, metavar="FILE")
    parser.add_argument("--write", action="store_true", help="into coefficients.json")
    options = parser.parse_args()
    table = json.loads(FILE.read_text(encoding="utf-8"))
    rows = table["vllm"]
    reports = read_reports(options.reports)
    peaks = list(_peaks(reports))
    starts = [tuple(row["from"]) for row in rows]
    for row, start, end in zip(rows, starts, [*starts[1:], (999,)], strict=True):
        _fit_row(row, [peak for peak in peaks if start <= _version(peak.case) < end])
    _print_held_out(reports, peaks, starts)
    if options.write:
        lines = ",\n    ".join(json.dumps(row) for row in rows)
        text = FILE.read_text(encoding="utf-8")
        before, rest = text.split('"vllm": [\n    ', 1)
        FILE.write_text(before + '"vllm": [\n    ' + lines + rest[rest.index("\n  ]") :])
        print(f"wrote {FILE}")


def _fit_row(row: dict[str, Any], peaks: list[Peak]) -> None:
    span = "vLLM from " + ".".join(map(str, row["from"]))
    models = {peak.model for peak in peaks}
    if len(models) < FEWEST_MODELS:
        print(f"{span}: {len(models)} models in its reports, kept as it is")
        return
    base = coefficients(EngineKind.VLLM, tuple(row["from"]))
    fitted = _fit(base, peaks)
    row |= {name: getattr(fitted, name) for name in ("logits", "hidden", "forward")}
    held_out = _cross_validate(base, peaks)
    print(
        f"{span}: {len(peaks)} reports of {len(models)} models: logits {fitted.logits:g}, hidden "
        f"{fitted.hidden:g}, forward {fitted.forward:g}; activation off by "
        f"{_error(fitted, peaks):.2f} GiB (mean), by {mean(held_out):.2f} on models left out, "
        f"at the most {max(held_out):.2f}"
    )
    for name, key, parallel in (
        ("non_torch_gib", "non_torch_gib", False),
        ("non_torch_parallel_gib", "non_torch_gib", True),
        ("graphs_gib", "cuda_graph_gib", False),
    ):
        seen = [
            float(peak.case.reported[key])
            for peak in peaks
            if peak.case.reported.get(key) is not None
            and (peak.case.settings.tensor_parallel > 1) == parallel
        ]
        if len(seen) >= FEWEST_REPORTS:
            print(f"  {name}: median {median(seen):.2f} of {len(seen)}, was {row[name]:g}")
            if name != "graphs_gib":
                row[name] = round(median(seen), 2)


def _fit(base: Coefficients, peaks: list[Peak]) -> Coefficients:
    candidates = (
        replace(base, logits=logits, hidden=hidden, forward=forward)
        for logits, hidden, forward in product(LOGITS, HIDDEN, FORWARD)
    )
    return min(candidates, key=lambda candidate: _error(candidate, peaks))


def _cross_validate(base: Coefficients, peaks: list[Peak]) -> list[float]:
    """The absolute error of each model with coefficients fitted to the others."""
    by_model: dict[str, list[Peak]] = defaultdict(list)
    for peak in peaks:
        by_model[peak.model].append(peak)
    errors = []
    for model, own in by_model.items():
        others = [peak for peak in peaks if peak.model != model]
        errors.append(_error(_fit(base, others), own))
    return errors


def _error(candidate: Coefficients, peaks: list[Peak]) -> float:
    """Mean over models, so that a model with many reports counts once."""
    by_model: dict[str, list[float]] = defaultdict(list)
    for peak in peaks:
        by_model[peak.model].append(abs(peak.parts.peak(candidate) / GIB - peak.gib))
    return mean(mean(errors) for errors in by_model.values())


def _peaks(reports: Iterable[dict[str, Any]]) -> Iterable[Peak]:
    """Of vLLM, where the report says what the peak follows from."""
    for report in reports:
        size = report["reported"].get("activation_gib")
        if size is None or not report.get("max_num_seqs") or not report.get("engine_version"):
            continue
        try:
            case = make_case(report)
        except (Unpredicted, CarpoolError):
            continue
        if case.settings.engine is not EngineKind.VLLM or case.settings.pipeline_parallel > 1:
            continue
        total = (case.memory_gib or 80) * GIB
        settings = filled(case.settings, total, case.device, case.shape.max_model_len)
        parts = activation_parts(case.shape, case.format, settings)
        yield Peak(replace(case, settings=settings), _model(case), size, parts)


def _print_held_out(
    reports: Iterable[dict[str, Any]], peaks: list[Peak], starts: list[Version]
) -> None:
    """KV tokens of vLLM from flags alone, of each model with coefficients fitted without it."""
    errors = []
    fits: dict[tuple[Version, frozenset[str]], Coefficients] = {}
    for case in _cases(reports):
        version, model = _version(case), _model(case)
        start = max(start for start in starts if start <= version)
        end = min((other for other in starts if other > start), default=(999,))
        others = [peak for peak in peaks
                  if start <= _version(peak.case) < end and peak.model != model]  # fmt: skip
        base = coefficients(EngineKind.VLLM, start)
        models = frozenset(peak.model for peak in others)
        if (start, models) not in fits:
            fits[start, models] = _fit(base, others) if len(models) >= FEWEST_MODELS else base
        known = fits[start, models]
        if error := errors_of(case, predict(case, known=known)).get("kv_tokens"):
            errors.append(error)
    values = by_group(errors)
    print(
        f"vLLM, KV tokens of models left out: off by {median(values):.1%} (median), "
        f"{p90(values):.1%} (90th percentile) over {len(values)} groups"
    )


def _cases(reports: Iterable[dict[str, Any]]) -> Iterator[Case]:
    for report in reports:
        try:
            case = make_case(report)
        except (Unpredicted, CarpoolError):
            continue
        is_vllm = case.settings.engine is EngineKind.VLLM
        if is_vllm and states_flags(case) and is_memory_known(case):
            yield case


def _model(case: Case) -> str:
    return case.group.split(" on ")[0]


def _version(case: Case) -> Version:
    return case.settings.version or (0,)


if __name__ == "__main__":
    main()
