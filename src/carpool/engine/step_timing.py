"""How long a team's usual steps take on this machine, for one form of a model."""

import dataclasses
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from carpool.engine.executor import Executor, ExecutorConfig
from carpool.engine.input_batch import InputBatch
from carpool.engine.options import Dtype, KVCacheDtype
from carpool.errors import CarpoolError

NUM_SEQS = 16
PROMPT_LEN, OUTPUT_LEN = 230, 64
CONTEXT_LEN = 256
NUM_STEPS = 5


class MeasurementError(CarpoolError):
    """The steps could not be run; most likely there was too little memory."""


def measure_in_child(path: Path, config: ExecutorConfig) -> float:
    """`workload_seconds` of the IR at `path`, in a process of its own, whose memory is given
    back. Raises MeasurementError."""
    command = [sys.executable, "-m", "carpool.engine.step_timing", str(path)]
    command.append(json.dumps(dataclasses.asdict(config)))
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        raise MeasurementError(f"{path}: measuring its steps failed (exit {done.returncode})")
    return float(done.stdout)


def workload_seconds(executor: Executor) -> float:
    """Seconds of a workload from measured steps: `PROMPT_LEN` prompt and `OUTPUT_LEN` output
    tokens, the geometric mean of one request alone and of `NUM_SEQS` served together."""
    blocks_per_seq = CONTEXT_LEN // executor.block_size + 1
    executor.allocate_kv_cache(NUM_SEQS * blocks_per_seq)
    prefill = step_seconds(executor, uniform_batch(1, CONTEXT_LEN, 0, blocks_per_seq))
    product = 1.0
    for num_seqs in (1, NUM_SEQS):
        batch = uniform_batch(num_seqs, 1, CONTEXT_LEN - 1, blocks_per_seq)
        prefills = num_seqs * PROMPT_LEN / CONTEXT_LEN
        product *= prefills * prefill + OUTPUT_LEN * step_seconds(executor, batch)
    return math.sqrt(product)


def step_seconds(executor: Executor, batch: InputBatch, num_steps: int = NUM_STEPS) -> float:
    """The least seconds of several steps: what else runs on the machine only adds."""
    seconds = []
    for _ in range(num_steps):
        started = time.perf_counter()
        executor.run(batch)
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def uniform_batch(num_seqs: int, num_new: int, past: int, blocks_per_seq: int) -> InputBatch:
    """Sequences of one length, each with its own blocks. What the tokens are and what the
    cache holds makes no difference to the time."""
    begins = np.arange(num_seqs + 1, dtype=np.int32) * num_new
    return InputBatch(
        input_ids=np.zeros(num_seqs * num_new, np.int64),
        position_ids=np.tile(np.arange(past, past + num_new, dtype=np.int64), num_seqs),
        past_lens=np.full(num_seqs, past, np.int32),
        subsequence_begins=begins,
        block_indices=np.arange(num_seqs * blocks_per_seq, dtype=np.int32),
        block_indices_begins=np.arange(num_seqs + 1, dtype=np.int32) * blocks_per_seq,
        max_context_len=np.array(past + num_new, np.int32),
        sampled_tokens_indices=begins[1:].astype(np.int64) - 1,
    )


def main(arguments: Sequence[str]) -> None:
    """Print the workload's seconds for the IR at a path, with a config as JSON."""
    path, fields = arguments[0], json.loads(arguments[1])
    config = ExecutorConfig(
        dtype=Dtype(fields["dtype"]),
        kv_cache_dtype=KVCacheDtype(fields["kv_cache_dtype"]),
        num_threads=fields["num_threads"],
    )
    print(workload_seconds(Executor(Path(path), config)))


if __name__ == "__main__":
    main(sys.argv[1:])
