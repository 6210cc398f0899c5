"""One at a time, in static batches, or in a batch that is formed anew at every step."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carpool.engine.core import ModelExecutor
from carpool.lab.findings import Chart, Findings, Table, times
from carpool.lab.lab_engine import LabEngine, Progress, Timing, answer_all, percentile
from carpool.lab.step_record import StepRecord
from carpool.lab.workload import SyntheticRequest
from carpool.scheduling.config import BatchingPolicy, QueuePolicy, SchedulerConfig

ALONE, STATIC, CONTINUOUS = "one at a time", "static batches", "continuous"


@dataclass(frozen=True, slots=True)
class BatchingFigures:
    """Latency is from the moment when all ask to the last token, in seconds."""

    batching: str
    max_num_seqs: int
    output_tok_s: float
    latency_p50_s: float
    latency_p99_s: float
    short_latency_p99_s: float
    mean_num_running: float


def measure_batching(
    executor: ModelExecutor,
    config: SchedulerConfig,
    requests: Sequence[SyntheticRequest],
    progress: Callable[[str], Progress],
) -> tuple[BatchingFigures, ...]:
    """The same requests, all at once, under three policies; `config` has the seats."""
    base = dataclasses.replace(config, enable_prefix_cache=False, queue_policy=QueuePolicy.FCFS)
    policies = {
        ALONE: dataclasses.replace(base, max_num_seqs=1),
        STATIC: dataclasses.replace(base, batching_policy=BatchingPolicy.STATIC),
        CONTINUOUS: base,
    }
    figures = []
    for name, policy in policies.items():
        engine = LabEngine(executor, policy)
        timings = answer_all(engine, requests, progress(name))
        figures.append(batching_figures(name, policy.max_num_seqs, timings, engine.steps))
    return tuple(figures)


def batching_figures(
    name: str, max_num_seqs: int, timings: Sequence[Timing], steps: Sequence[StepRecord]
) -> BatchingFigures:
    latencies = [timing.latency for timing in timings]
    return BatchingFigures(
        batching=name,
        max_num_seqs=max_num_seqs,
        output_tok_s=output_tok_s(timings),
        latency_p50_s=percentile(latencies, 50),
        latency_p99_s=percentile(latencies, 99),
        short_latency_p99_s=percentile(
            (timing.latency for timing in timings if timing.request.is_short), 99
        ),
        mean_num_running=sum(step.num_running for step in steps) / len(steps),
    )


def output_tok_s(timings: Sequence[Timing]) -> float:
    """Output tokens a second, from the first question to the last token."""
    num_tokens = sum(len(timing.token_ids) for timing in timings)
    begin = min(timing.asked_at for timing in timings)
    return num_tokens / (max(timing.finished_at for timing in timings) - begin)


def batching_findings(
    figures: tuple[BatchingFigures, ...], requests: Sequence[SyntheticRequest]
) -> Findings:
    num_short = sum(request.is_short for request in requests)
    labels = tuple(each.batching for each in figures)
    return Findings(
        "batching",
        tuple(dataclasses.asdict(each) for each in figures),
        Table(
            f"1. Batching: {num_short} short and {len(requests) - num_short} long requests, "
            "all at once",
            ("batching", "seats", "mean running", "output tok/s", "latency p50 s",
             "latency p99 s", "short ones p99 s"),
            tuple(
                (
                    each.batching,
                    str(each.max_num_seqs),
                    f"{each.mean_num_running:.1f}",
                    f"{each.output_tok_s:.1f}",
                    f"{each.latency_p50_s:.1f}",
                    f"{each.latency_p99_s:.1f}",
                    f"{each.short_latency_p99_s:.1f}",
                )
                for each in figures
            ),
        ),
        (
            Chart("Throughput (more is better)", "output tokens / s", labels,
                  {"": tuple(each.output_tok_s for each in figures)}),
            Chart("Latency of all (less is better)", "seconds", labels,
                  {"p50": tuple(each.latency_p50_s for each in figures),
                   "p99": tuple(each.latency_p99_s for each in figures)}),
            Chart("Latency of the short ones, p99 (less is better)", "seconds", labels,
                  {"": tuple(each.short_latency_p99_s for each in figures)}),
        ),
        _sentence(*figures),
    )  # fmt: skip


def _sentence(alone: BatchingFigures, static: BatchingFigures, continuous: BatchingFigures) -> str:
    return (
        f"Continuous batching gives {continuous.output_tok_s:.0f} output tok/s, "
        f"{times(continuous.output_tok_s, alone.output_tok_s, 'that of one at a time')} and "
        f"{times(continuous.output_tok_s, static.output_tok_s, 'that of static batches')}; "
        f"nearly all short requests (p99) are done after {continuous.short_latency_p99_s:.1f} s, "
        f"after {static.short_latency_p99_s:.1f} s in static batches and after "
        f"{alone.short_latency_p99_s:.1f} s one at a time."
    )
