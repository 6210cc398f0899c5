"""The same KV memory, reserved for the longest answer or paged as answers grow."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carpool.engine.core import ModelExecutor
from carpool.lab.batching import output_tok_s
from carpool.lab.findings import Chart, Findings, Table, times
from carpool.lab.lab_engine import LabEngine, Progress, answer_all
from carpool.lab.step_record import wasted_share
from carpool.lab.workload import SyntheticRequest
from carpool.scheduling.config import MemoryPolicy, QueuePolicy, SchedulerConfig

RESERVED, PAGED = "reserved", "paged"


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """`wasted_share` is the mean over steps of held but unwritten slots over held slots."""

    kv_memory: str
    kv_tokens: int
    wasted_share: float
    mean_num_running: float
    peak_num_running: int
    num_preemptions: int
    output_tok_s: float


def measure_memory(
    executor: ModelExecutor,
    config: SchedulerConfig,
    requests: Sequence[SyntheticRequest],
    progress: Callable[[str], Progress],
) -> tuple[MemoryFigures, ...]:
    """The same requests, all at once, in the KV cache of `config` under both policies."""
    base = dataclasses.replace(config, enable_prefix_cache=False, queue_policy=QueuePolicy.FCFS)
    figures = []
    for name, policy in ((RESERVED, MemoryPolicy.RESERVE_MAX), (PAGED, MemoryPolicy.PAGED)):
        engine = LabEngine(executor, dataclasses.replace(base, memory_policy=policy))
        timings = answer_all(engine, requests, progress(name))
        running = [step.num_running for step in engine.steps]
        figures.append(
            MemoryFigures(
                kv_memory=name,
                kv_tokens=config.kv_tokens,
                wasted_share=wasted_share(engine.steps),
                mean_num_running=sum(running) / len(running),
                peak_num_running=max(running),
                num_preemptions=engine.num_preemptions,
                output_tok_s=output_tok_s(timings),
            )
        )
    return tuple(figures)


def memory_findings(
    figures: tuple[MemoryFigures, ...],
    requests: Sequence[SyntheticRequest],
    bytes_per_token: float,
) -> Findings:
    labels = tuple(each.kv_memory for each in figures)
    kv_tokens = figures[0].kv_tokens
    return Findings(
        "kv_memory",
        tuple(dataclasses.asdict(each) for each in figures),
        Table(
            f"2. KV memory: {kv_tokens:,} tokens ({kv_tokens * bytes_per_token / 2**20:,.0f} MiB) "
            f"for {len(requests)} requests that ask for up to {requests[0].max_tokens} tokens "
            f"and use {_mean_output(requests):.0f} on average",
            ("KV memory", "wasted", "mean running", "peak running", "preemptions",
             "output tok/s"),
            tuple(
                (
                    each.kv_memory,
                    f"{each.wasted_share:.0%}",
                    f"{each.mean_num_running:.1f}",
                    str(each.peak_num_running),
                    str(each.num_preemptions),
                    f"{each.output_tok_s:.1f}",
                )
                for each in figures
            ),
        ),
        (
            Chart("KV memory held but empty (less is better)", "% of the slots held", labels,
                  {"": tuple(100 * each.wasted_share for each in figures)}, "{:,.0f}%"),
            Chart("Sequences that run at once (more is better)", "sequences", labels,
                  {"mean": tuple(each.mean_num_running for each in figures),
                   "peak": tuple(float(each.peak_num_running) for each in figures)}),
            Chart("Throughput (more is better)", "output tokens / s", labels,
                  {"": tuple(each.output_tok_s for each in figures)}),
        ),
        _sentence(*figures),
    )  # fmt: skip


def _mean_output(requests: Sequence[SyntheticRequest]) -> float:
    return sum(request.num_output_tokens for request in requests) / len(requests)


def _sentence(reserved: MemoryFigures, paged: MemoryFigures) -> str:
    return (
        f"Of the KV memory that is held, paging leaves {paged.wasted_share:.0%} unused and "
        f"reserving {reserved.wasted_share:.0%}; so {paged.mean_num_running:.1f} sequences run at "
        f"once instead of {reserved.mean_num_running:.1f}, and the output tok/s are "
        f"{times(paged.output_tok_s, reserved.output_tok_s, 'those with reserved memory')}."
    )
