"""What the scheduler costs per step: `python -m benchmarks.scheduler`.

Decode: 64 sequences of 1,000 tokens are running, and `schedule()` + `update()` of one more
token each is timed. Prefill: 64 prompts that share a long prefix arrive at once, and the
steps that admit them are timed. No model runs; the token ids are made up. Times are CPU
milliseconds, so that a busy machine does not count. The last line is one JSON object.
"""

import json
from statistics import median
from time import thread_time

from carpool.scheduling.outputs import ModelRunnerOutput, SchedulerOutput
from carpool.scheduling.request import Request
from carpool.scheduling.scheduler import Scheduler, SchedulerConfig

NUM_SEQUENCES = 64
NUM_TOKENS = 1000
NUM_STEPS = 256
BLOCK_SIZE = 32


def make_scheduler(max_num_batched_tokens: int) -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            num_blocks=NUM_SEQUENCES * 64,
            block_size=BLOCK_SIZE,
            max_num_seqs=NUM_SEQUENCES,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=2048,
        )
    )


def run_step(scheduler: Scheduler) -> tuple[float, float, SchedulerOutput]:
    """One step: seconds in schedule(), seconds in update(), and the step."""
    begin = thread_time()
    output = scheduler.schedule(begin)
    planned = thread_time()
    if output is None:
        raise RuntimeError("nothing to schedule")
    sampled = {item.request.request_id: 7 for item in output.scheduled if item.is_sampling}
    result = ModelRunnerOutput(sampled)
    ran = thread_time()
    scheduler.update(output, result, ran)
    return planned - begin, thread_time() - ran, output


def time_decodes() -> dict[str, float]:
    scheduler = make_scheduler(NUM_SEQUENCES * NUM_TOKENS)
    for index in range(NUM_SEQUENCES):
        prompt = [index * NUM_TOKENS + position for position in range(NUM_TOKENS)]
        scheduler.add(Request(f"r{index}", prompt, max_tokens=NUM_STEPS + 2), 0.0)
    run_step(scheduler)
    steps = [run_step(scheduler)[:2] for _ in range(NUM_STEPS)]
    totals = sorted(schedule + update for schedule, update in steps)
    return {
        "decode_schedule_ms": 1e3 * median(schedule for schedule, _ in steps),
        "decode_update_ms": 1e3 * median(update for _, update in steps),
        "decode_step_ms_p50": 1e3 * median(totals),
        "decode_step_ms_p99": 1e3 * totals[int(0.99 * len(totals))],
        "decode_step_ms_max": 1e3 * totals[-1],
    }


def time_shared_prefix() -> dict[str, float]:
    """A fleet with one prefix of NUM_TOKENS tokens: the prefix is computed once."""
    scheduler = make_scheduler(512)
    prefix = list(range(NUM_TOKENS))
    for index in range(NUM_SEQUENCES):
        prompt = [*prefix, *(10_000 + index * 50 + position for position in range(50))]
        scheduler.add(Request(f"r{index}", prompt, max_tokens=64), 0.0)
    longest, num_computed, num_steps = 0.0, 0, 0
    while scheduler.stats().num_waiting or num_steps < 1:
        schedule, update, output = run_step(scheduler)
        longest = max(longest, schedule + update)
        num_computed += output.num_scheduled_tokens
        num_steps += 1
    return {
        "shared_prefix_step_ms_max": 1e3 * longest,
        "shared_prefix_computed_share": num_computed / (NUM_SEQUENCES * (NUM_TOKENS + 50)),
    }


def main() -> None:
    figures = time_decodes() | time_shared_prefix()
    print(f"{NUM_SEQUENCES} sequences of {NUM_TOKENS} tokens, blocks of {BLOCK_SIZE}")
    for name, value in figures.items():
        print(f"{name:32s}{value:10.3f}")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
