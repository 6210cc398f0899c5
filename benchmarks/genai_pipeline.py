"""OpenVINO GenAI's ContinuousBatchingPipeline in process: work as JSON on stdin, and per
level the seconds at which each request's tokens could be read, as JSON on stdout."""

import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers import CACHE_MIB, MAX_NUM_SEQS


def main() -> None:
    work = json.load(sys.stdin)
    config = openvino_genai.SchedulerConfig()
    config.cache_size = CACHE_MIB // 1024
    config.max_num_seqs = MAX_NUM_SEQS
    config.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        work["folder"], config, "CPU", {"INFERENCE_NUM_THREADS": work["threads"]}
    )
    print(json.dumps([_run(pipeline, level, work["output_len"]) for level in work["levels"]]))


def _run(pipeline: Any, prompts: list[list[int]], output_len: int) -> dict[str, Any]:
    generation = openvino_genai.GenerationConfig()
    generation.max_new_tokens = output_len
    generation.ignore_eos = True
    generation.do_sample = False
    generation.apply_chat_template = False
    started = time.perf_counter()
    handles = [
        pipeline.add_request(i, openvino.Tensor(np.array([prompt], np.int64)), generation)
        for i, prompt in enumerate(prompts)
    ]
    tokens: list[list[float]] = [[] for _ in handles]
    while pipeline.has_non_finished_requests():
        pipeline.step()
        now = time.perf_counter() - started
        for times, handle in zip(tokens, handles, strict=True):
            while handle.can_read():
                times += [now] * sum(len(out.generated_ids) for out in handle.read().values())
    return {"tokens": tokens}


if __name__ == "__main__":
    main()
