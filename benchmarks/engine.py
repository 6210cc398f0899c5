"""The embedded engine against its peers: the same model and threads, in one run.

    make bench-engine                  everything; 10 minutes on 2 cores
    python -m benchmarks.engine --levels 16,32

Carpool is measured over HTTP with SSE, its client on the same cores; OpenVINO GenAI's
continuous batching in process, without HTTP; llama-server over HTTP where the package
`xllamacpp` is installed. Each level starts all its streams at once; output tok/s is all
output tokens over the time from the first request to the last token. Every level runs
twice and the better one counts, for each engine alike.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import peers
from benchmarks.stream_client import StreamTimes, run_streams
from carpool.engine.resolve import default_cache, resolve

PROMPT_LEN, OUTPUT_LEN = 230, 64
NUM_RUNS = 2
SYSTEM_PROMPT_LEN = 1500
LONG_PROMPT_LEN = 3000
Prompts = list[list[int]]


@dataclass(frozen=True, slots=True)
class Level:
    """Figures of one level of concurrency."""

    tok_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float


class Workload:
    """Prompts of random tokens, none of which begins like another."""

    def __init__(self, vocab_size: int, special: frozenset[int], seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._tokens = np.array([i for i in range(vocab_size) if i not in special])

    def prompts(self, lengths: Sequence[int]) -> Prompts:
        return [self._random.choice(self._tokens, length).tolist() for length in lengths]


def level_of(streams: Sequence[StreamTimes]) -> Level:
    first = min(stream.sent for stream in streams)
    last = max(stream.events[-1] for stream in streams)
    ttfts = [1e3 * stream.ttft for stream in streams]
    return Level(
        tok_s=sum(stream.num_tokens for stream in streams) / (last - first),
        ttft_p50_ms=float(np.percentile(ttfts, 50)),
        ttft_p99_ms=float(np.percentile(ttfts, 99)),
        tpot_p50_ms=median(1e3 * stream.tpot for stream in streams),
    )


def better(levels: Sequence[Level]) -> Level:
    return max(levels, key=lambda level: level.tok_s)


def body(prompt: list[int], **fields: Any) -> dict[str, Any]:
    base = {"prompt": prompt, "max_tokens": OUTPUT_LEN, "temperature": 0, "ignore_eos": True}
    return base | fields


def streams(server: peers.Server, prompts: Prompts, **fields: Any) -> list[StreamTimes]:
    bodies = [body(prompt, **fields) for prompt in prompts]
    return asyncio.run(run_streams("127.0.0.1", server.port, bodies))


def http_levels(
    server: peers.Server, work: dict[int, list[Prompts]], **fields: Any
) -> dict[int, Level]:
    return {
        num_streams: better([level_of(streams(server, prompts, **fields)) for prompts in runs])
        for num_streams, runs in work.items()
    }


def genai_levels(folder: Path, threads: int, work: dict[int, list[Prompts]]) -> dict[int, Level]:
    flat = [prompts for runs in work.values() for prompts in runs]
    results = iter(peers.run_genai(folder, threads, flat, OUTPUT_LEN))
    return {
        num_streams: better(
            [
                level_of([StreamTimes(0.0, times, len(times)) for times in next(results)["tokens"]])
                for _ in runs
            ]
        )
        for num_streams, runs in work.items()
    }


# ----------------------------------------------------------- Carpool's own figures


def sampling_cost(server: peers.Server, load: Workload) -> float:
    """Share of greedy throughput that temperature 0.8 and top_p 0.95 cost at 32 streams.
    Runs alternate, so that a drift of the machine's speed hits both."""
    speeds: dict[float, list[float]] = {0.0: [], 0.8: []}
    for _ in range(NUM_RUNS):
        for temperature, found in speeds.items():
            prompts = load.prompts([32] * 32)
            fields = {"temperature": temperature, "top_p": 0.95, "seed": 1, "max_tokens": 96}
            found.append(level_of(streams(server, prompts, **fields)).tok_s)
    return 1 - max(speeds[0.8]) / max(speeds[0.0])


def prefix_ttft_ratio(server: peers.Server, load: Workload) -> float:
    """TTFT of a second question after the same long system prompt, over that of the first."""
    ratios = []
    for _ in range(3):
        system, first, second = load.prompts([SYSTEM_PROMPT_LEN, 20, 20])
        cold = streams(server, [system + first], max_tokens=2)[0].ttft
        warm = streams(server, [system + second], max_tokens=2)[0].ttft
        ratios.append(warm / cold)
    return median(ratios)


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """A long prompt that arrives among 8 decoding streams: the longest that any of them waited
    for a token, a usual step, and a chunk of such a prompt alone, the last and longest one."""

    longest_gap_ms: float
    usual_step_ms: float
    chunk_ms: float

    @property
    def allowed_ms(self) -> float:
        return 3 * self.usual_step_ms + self.chunk_ms


def long_prompt(server: peers.Server, load: Workload, chunk_len: int) -> LongPrompt:
    async def run() -> tuple[list[StreamTimes], list[StreamTimes]]:
        short = load.prompts([PROMPT_LEN] * 8)
        decoding = asyncio.create_task(
            run_streams("127.0.0.1", server.port, [body(p, max_tokens=160) for p in short])
        )
        await asyncio.sleep(6)
        late = load.prompts([LONG_PROMPT_LEN])
        long = await run_streams("127.0.0.1", server.port, [body(late[0], max_tokens=2)])
        return await decoding, long

    decoding, long = asyncio.run(run())
    arrived, answered = long[0].sent, long[0].events[0]
    during: list[float] = []
    before: list[float] = []
    for stream in decoding:
        for begin, end in zip(stream.events, stream.events[1:], strict=False):
            if arrived < end and begin < answered:
                during.append(end - begin)
            elif end <= arrived:
                before.append(end - begin)
    if not during or not before:
        raise RuntimeError("the long prompt did not arrive among decoding streams")
    chunk_s = median(last_chunk_s(server, load, chunk_len) for _ in range(3))
    return LongPrompt(1e3 * max(during), 1e3 * median(before), 1e3 * chunk_s)


def last_chunk_s(server: peers.Server, load: Workload, chunk_len: int) -> float:
    """Seconds for the last chunk of a long prompt, all before it being in the prefix cache."""
    prompt = load.prompts([LONG_PROMPT_LEN])[0]
    streams(server, [prompt[:-chunk_len]], max_tokens=1)
    return streams(server, [prompt], max_tokens=1)[0].ttft


def memory_bandwidth(threads: int) -> float:
    """Bytes per second that `threads` threads read from memory, by summing large arrays."""
    arrays = [np.ones(64 * 2**20, np.float32) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(np.sum, arrays))
            best = max(best, sum(a.nbytes for a in arrays) / (time.perf_counter() - started))
    return best


def bandwidth_share(server: peers.Server, step_s: float, num_seqs: int, bandwidth: float) -> float:
    """The least time in which memory gives a decode step its weights and KV, over the step's."""
    facts = server.facts
    context = PROMPT_LEN + OUTPUT_LEN / 2
    num_bytes = facts["weight_bytes"] + num_seqs * context * facts["kv_bytes_per_token"]
    return float(num_bytes / bandwidth / step_s)


def kv_waste(folder: Path, path: Path, num_seqs: int, load: Workload) -> float:
    """Mean share, over steps, of held KV slots that hold no token, at prompts of 128 to 2,048
    tokens (log-uniform) and outputs of 16 to 128."""
    from carpool.engine.core import EngineCore
    from carpool.engine.executor import Executor, ExecutorConfig
    from carpool.engine.generation import GenerationRequest
    from carpool.engine.sampling_params import SamplingParams
    from carpool.scheduling.scheduler import Scheduler, SchedulerConfig

    executor = Executor(path, ExecutorConfig())
    executor.allocate_kv_cache(num_seqs * 72)
    config = SchedulerConfig(
        num_blocks=num_seqs * 72,
        block_size=executor.block_size,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=256,
        max_model_len=4096,
    )
    scheduler = Scheduler(config)
    core = EngineCore(executor, scheduler)
    random = np.random.default_rng(5)
    lengths = np.exp(random.uniform(np.log(128), np.log(2048), num_seqs)).astype(int).tolist()
    for i, prompt in enumerate(load.prompts(lengths)):
        sampling = SamplingParams(max_tokens=int(random.integers(16, 129)), temperature=0.0)
        core.add(
            GenerationRequest(request_id=str(i), prompt_token_ids=tuple(prompt), sampling=sampling)
        )
    shares = []
    while core.has_unfinished:
        core.step()
        running = scheduler.running
        held = sum(len(request.block_table) for request in running) * executor.block_size
        if held:
            shares.append(1 - sum(request.num_tokens for request in running) / held)
    return float(np.mean(shares))


# ------------------------------------------------------------------------ the run


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--levels", default="1,4,16,32")
    parser.add_argument("--no-peers", action="store_true", help="Carpool's own figures alone.")
    options = parser.parse_args(arguments)
    levels = [int(level) for level in options.levels.split(",")]
    console = Console(stderr=True, highlight=False)

    cache = default_cache()
    model = resolve(options.model, cache)
    special = frozenset(model.tokenizer.special_token_ids)
    load = Workload(model.spec.vocab_size, special, seed=0)
    work = {
        level: [load.prompts([PROMPT_LEN] * level) for _ in range(NUM_RUNS)] for level in levels
    }
    bandwidth = memory_bandwidth(options.threads)
    result: dict[str, Any] = {"threads": options.threads, "memory_gb_s": bandwidth / 1e9}
    found: dict[str, dict[int, Level]] = {}

    console.print("Carpool over HTTP ...")
    with peers.carpool_server(options.model, options.threads) as server:
        streams(server, load.prompts([PROMPT_LEN] * 4))
        found["carpool"] = http_levels(server, work)
        if 16 in levels:
            step_s = found["carpool"][16].tpot_p50_ms / 1e3
            result["bandwidth_share_16"] = bandwidth_share(server, step_s, 16, bandwidth)
        result["sampling_cost_32"] = sampling_cost(server, load)
        result["prefix_ttft_ratio"] = prefix_ttft_ratio(server, load)
        long = long_prompt(server, load, server.facts["max_num_batched_tokens"])
        result["long_prompt"] = asdict(long) | {"allowed_ms": long.allowed_ms}
        allowed = server.facts["weight_bytes"] + (peers.CACHE_MIB + 700) * 2**20
        result["peak_rss_mib"] = server.peak_rss_bytes / 2**20
        result["allowed_rss_mib"] = allowed / 2**20
        weights_path = Path(server.facts["weights_path"])
    if not options.no_peers:
        console.print("OpenVINO GenAI in process ...")
        found["openvino_genai"] = genai_levels(model.folder, options.threads, work)
    if not options.no_peers and peers.has_llama_server() and model.source_sha256:
        console.print("llama-server over HTTP ...")
        with peers.llama_server(cache.blob(model.source_sha256), options.threads) as server:
            streams(server, load.prompts([PROMPT_LEN] * 4))
            found["llama_server"] = http_levels(server, work)
    result["kv_waste_16"] = kv_waste(model.folder, weights_path, 16, load)
    _report(found, levels, result)


def _report(found: dict[str, dict[int, Level]], levels: list[int], result: dict[str, Any]) -> None:
    table = Table(title=f"prompt {PROMPT_LEN}, output {OUTPUT_LEN}, {result['threads']} threads")
    for name in ("streams", "engine", "tok/s", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms"):
        table.add_column(name, justify="right")
    for level in levels:
        for engine, by_level in found.items():
            row = by_level[level]
            figures = (row.tok_s, row.ttft_p50_ms, row.ttft_p99_ms, row.tpot_p50_ms)
            table.add_row(str(level), engine, *(f"{figure:,.1f}" for figure in figures))
    Console(width=100).print(table)
    ours = found["carpool"]
    if 1 in ours and 32 in ours:
        result["single_stream_ratio_32"] = ours[32].tok_s / ours[1].tok_s
        result["decode_ratio_32"] = 32 * ours[1].tpot_p50_ms / ours[32].tpot_p50_ms
    result["streams"] = {
        str(level): {engine: asdict(by_level[level]) for engine, by_level in found.items()}
        for level in levels
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
