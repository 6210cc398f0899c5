"""How far off the planner is, against start-up reports of engines that people published.

    python -m benchmarks.planner [--reports FILE] [--worst 5]

For each engine and class of architecture: errors of weights, KV memory, KV tokens and
maximum concurrency, over groups of model and device (the median of a group counts once),
what could not be predicted and why, and whether failed starts were foreseen. "given
weights" takes the weights from the report, the rest from flags. The last line is JSON.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from benchmarks.planner_reports import Case, Unpredicted, did_fail, make_case, read_reports
from carpool.errors import CarpoolError
from carpool.models.weight_format import weight_bytes
from carpool.planning.coefficients import Coefficients
from carpool.planning.engine_kind import EngineKind
from carpool.planning.figure import GIB, Figure, Known
from carpool.planning.kv_pool import KVPool, make_pool
from carpool.planning.memory import MemoryPlan, Weights, plan_memory
from carpool.planning.settings import Settings, filled
from carpool.planning.verdict import missing_devices, start_up_trouble

REPORTS = Path(__file__).parent.parent / "tests/planning/start_up_reports.jsonl"
QUANTITIES = ("weights", "kv_bytes_per_token", "kv_memory", "kv_tokens", "concurrency")
FROM_FLAGS = ("kv_memory", "kv_tokens", "concurrency")
"""Follow from flags: they are scored where the report states the memory share and, of vLLM,
the number of sequences. For the others they are printed as `DEFAULTS`."""
DEFAULTS = " (defaults for what is not stated)"


EXACT = 0.02
"""Bytes of a token are counted, not fitted: what is further off needs a reason."""


class Prediction(NamedTuple):
    memory: MemoryPlan
    pool: KVPool
    settings: Settings
    trouble: str | None


class Error(NamedTuple):
    """Relative: (predicted - reported) / reported."""

    id: str
    group: str
    value: float
    predicted: float
    reported: float


def predict(
    case: Case, given_weights: bool = False, known: Coefficients | None = None
) -> Prediction:
    """From flags alone, or with the report's weights. What follows from the device's memory says
    nothing where that is unknown, see `is_memory_known`. Raises `Unpredicted`."""
    total = (case.memory_gib or 1e6) * GIB
    if case.settings.engine is EngineKind.LLAMA_CPP:
        total *= case.num_devices
    settings = filled(case.settings, total, case.device, case.shape.max_model_len)
    experts = case.shape.experts
    width = experts.intermediate_size if experts else None
    sizes = weight_bytes(case.shape.parameters, case.format, case.shape.dtype, width)
    weights = Weights(sizes, case.format, Known.PUBLISHED)
    memory = plan_memory(case.shape, weights, settings, Figure.exact(total, Known.DRIVER), known)
    if given_weights:
        if "weights_gib" not in case.reported:
            raise Unpredicted("the report does not give the weights")
        own = Figure.exact(case.reported["weights_gib"] * GIB, Known.MEASURED)
        memory = replace(memory, weights=own, kv_cache=(memory.kv_cache + memory.weights).less(own))
    pool = make_pool(case.shape, settings, memory.kv_cache.value)
    # What a report does not say of these is not known, and no default either.
    said = replace(
        settings,
        max_model_len=case.settings.max_model_len or 1,
        max_num_seqs=case.settings.max_num_seqs or 1,
    )
    missing = missing_devices(case.settings, case.num_devices)
    trouble = missing or start_up_trouble(case.shape, said, memory, pool)
    return Prediction(memory, pool, settings, trouble)


def is_memory_known(case: Case) -> bool:
    return case.memory_gib is not None or case.settings.kv_tokens is not None


def is_offloaded(case: Case, prediction: Prediction) -> bool:
    """llama.cpp keeps what does not fit in the host's memory; reports do not say how much."""
    if case.settings.engine is not EngineKind.LLAMA_CPP:
        return False
    is_larger = prediction.memory.weights.value > prediction.memory.total.value
    return is_larger or not case.weights_on_device


def errors_of(case: Case, prediction: Prediction) -> dict[str, Error]:
    """Of the quantities that the report states and the flags do not."""
    pairs: dict[str, tuple[float, float]] = {}
    reported, settings = case.reported, prediction.settings
    memory = prediction.memory
    if not is_offloaded(case, prediction) and "weights_gib" in reported:
        pairs["weights"] = memory.weights.value / GIB, reported["weights_gib"]
    size, tokens = reported.get("kv_cache_gib"), reported_tokens(reported)
    if size and tokens:
        given = make_pool(case.shape, replace(settings, kv_tokens=None), size * GIB)
        if settings.engine is EngineKind.LLAMA_CPP:
            pairs["kv_bytes_per_token"] = kv_gib(prediction), size
        elif given.kv_tokens:
            pairs["kv_bytes_per_token"] = tokens, given.kv_tokens
    if size and size > 0:
        pairs["kv_memory"] = kv_gib(prediction), size
    if tokens:
        pairs["kv_tokens"] = prediction.pool.kv_tokens, tokens
    if (most := reported.get("max_concurrency")) and settings.max_model_len:
        pairs["concurrency"] = prediction.pool.concurrency(settings.max_model_len), most
    return {
        name: Error(case.id, case.group, (ours - theirs) / theirs, ours, theirs)
        for name, (ours, theirs) in pairs.items()
        if theirs
    }


def kv_gib(prediction: Prediction) -> float:
    """llama.cpp speaks of keys and values, and of states in another line."""
    pool, settings = prediction.pool, prediction.settings
    if settings.engine is not EngineKind.LLAMA_CPP:
        return pool.num_bytes / GIB
    return (pool.num_bytes - (settings.max_num_seqs or 1) * pool.demand.state) / GIB


def reported_tokens(reported: dict[str, Any]) -> float | None:
    if reported.get("kv_tokens"):
        return float(reported["kv_tokens"])
    if reported.get("num_blocks") and reported.get("block_size"):
        return float(reported["num_blocks"] * reported["block_size"])
    return None


def by_group(errors: Iterable[Error]) -> list[float]:
    """The median absolute error of each group."""
    groups: dict[str, list[float]] = defaultdict(list)
    for error in errors:
        groups[error.group].append(abs(error.value))
    return [median(values) for values in groups.values()]


def summary(errors: Iterable[Error]) -> dict[str, float | int | None]:
    values = by_group(errors)
    return {
        "median_abs_error": round(median(values), 4) if values else None,
        "p90_abs_error": round(p90(values), 4) if values else None,
        "groups": len(values),
    }


def p90(values: list[float]) -> float:
    return quantiles(values, n=10, method="inclusive")[-1] if len(values) > 1 else values[0]


class Score(NamedTuple):
    """Errors by (engine, architecture class or "all", quantity, given weights). `unpredicted`:
    (id, why) by engine. `foreseen`: (id, whether it failed, what was foreseen)."""

    errors: dict[tuple[str, str, str, bool], list[Error]]
    unpredicted: dict[str, list[tuple[str, str]]]
    foreseen: list[tuple[str, bool, str | None]]
    inexact: list[tuple[str, Error, tuple[str, ...]]]
    """Bytes of a token that are further off than `EXACT`, and what the report leaves open."""


def score(reports: Iterable[dict[str, Any]]) -> Score:
    errors: dict[tuple[str, str, str, bool], list[Error]] = defaultdict(list)
    unpredicted: dict[str, list[tuple[str, str]]] = defaultdict(list)
    foreseen: list[tuple[str, bool, str | None]] = []
    inexact: list[tuple[str, Error, tuple[str, ...]]] = []
    for report in reports:
        engine = str(report.get("engine")).split(" (")[0]
        try:
            case = make_case(report)
            engine = case.settings.engine.value
            prediction = predict(case)
        except (Unpredicted, CarpoolError) as reason:
            unpredicted[engine].append((str(report.get("id")), str(reason)))
            continue
        if not is_memory_known(case):
            unpredicted[engine].append((case.id, f"device {case.device!r}: memory not known"))
        elif not is_offloaded(case, prediction):
            foreseen.append((case.id, did_fail(report), prediction.trouble))
        is_stated = states_flags(case) and is_memory_known(case)
        for name, error in errors_of(case, prediction).items():
            if name in FROM_FLAGS and not is_stated:
                if is_memory_known(case):
                    errors[engine, "all", name + DEFAULTS, False].append(error)
                continue
            if name == "kv_bytes_per_token" and abs(error.value) > EXACT:
                inexact.append((engine, error, case.unstated))
            for architecture in ("all", case.architecture):
                errors[engine, architecture, name, False].append(error)
        if "weights_gib" in case.reported and is_stated:
            for name, error in errors_of(case, predict(case, given_weights=True)).items():
                errors[engine, "all", name, True].append(error)
    return Score(errors, unpredicted, foreseen, inexact)


def states_flags(case: Case) -> bool:
    """Whether the report states what the size of the KV cache follows from."""
    asked = case.settings
    if asked.engine is EngineKind.VLLM:
        return asked.memory_share is not None and asked.max_num_seqs is not None
    return asked.memory_share is not None or asked.kv_tokens is not None


def failed_starts(foreseen: list[tuple[str, bool, str | None]]) -> dict[str, Any]:
    failed = [trouble for _, did_fail, trouble in foreseen if did_fail]
    started = [trouble for _, did_fail, trouble in foreseen if not did_fail]
    return {
        "recall": round(sum(map(bool, failed)) / len(failed), 4) if failed else None,
        "false_alarms": round(sum(map(bool, started)) / len(started), 4) if started else None,
        "failed": len(failed),
        "started": len(started),
    }


def exactness(result: Score) -> dict[str, Any]:
    """Of all engines: reports that state memory and tokens, and those that are off for no
    reason that is known."""
    counts = [len(errors) for key, errors in result.errors.items()
              if key[1:] == ("all", "kv_bytes_per_token", False)]  # fmt: skip
    return {
        "reports": sum(counts),
        "within_2_percent": sum(counts) - len(result.inexact),
        "unexplained": [error.id for _, error, unstated in result.inexact if not unstated],
    }


def last_line(result: Score) -> dict[str, Any]:
    line: dict[str, Any] = {}
    for engine in ("vllm", "sglang", "llama.cpp"):
        line[engine.replace(".", "_")] = {
            name: summary(result.errors.get((engine, "all", name, False), []))
            | {"unpredicted": len(result.unpredicted.get(engine, []))}
            for name in (*QUANTITIES, "kv_tokens" + DEFAULTS)
        }
    line["kv_bytes_per_token"] = exactness(result)
    line["failed_starts"] = failed_starts(result.foreseen)
    return line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--reports", type=Path, default=REPORTS, metavar="FILE")
    parser.add_argument("--worst", type=int, default=3, help="cases to name for each quantity")
    options = parser.parse_args()
    result = score(read_reports(options.reports))
    _print_errors(result, options.worst)
    _print_inexact(result)
    _print_unpredicted(result)
    _print_starts(result)
    print(json.dumps(last_line(result)))


def _print_errors(result: Score, num_worst: int) -> None:
    print(
        f"{'engine':10} {'architecture':38} {'quantity':20} {'groups':>6} {'median':>7} {'p90':>7}"
    )
    for (engine, architecture, name, given), errors in sorted(result.errors.items()):
        values = by_group(errors)
        label = f"{name} (given weights)" if given else name
        print(f"{engine:10} {architecture:38} {label:20} {len(values):6} "
              f"{median(values):7.1%} {p90(values):7.1%}")  # fmt: skip
        if architecture == "all" and not given:
            for error in sorted(errors, key=lambda e: -abs(e.value))[:num_worst]:
                print(f"{'':12}{error.value:+8.1%} {error.predicted:,.4g} for "
                      f"{error.reported:,.4g}  {error.id}")  # fmt: skip


def _print_inexact(result: Score) -> None:
    exact = exactness(result)
    print(f"\nbytes of a token: within {EXACT:.0%} in {exact['within_2_percent']} of "
          f"{exact['reports']} reports; not in")  # fmt: skip
    for _, error, unstated in result.inexact:
        why = ", ".join(unstated)
        print(f"  {error.value:+8.1%}  {error.id}: {'not stated: ' + why if why else 'unknown'}")


def _print_unpredicted(result: Score) -> None:
    for engine, rows in sorted(result.unpredicted.items()):
        print(f"\n{engine}: {len(rows)} not predicted")
        for reason, count in Counter(reason for _, reason in rows).most_common():
            print(f"  {count:3}  {reason}")


def _print_starts(result: Score) -> None:
    print()
    for id, failed, trouble in result.foreseen:
        if failed and not trouble:
            print(f"failed, not foreseen: {id}")
        if trouble and not failed:
            print(f"false alarm: {id}: {trouble}")


if __name__ == "__main__":
    main()
