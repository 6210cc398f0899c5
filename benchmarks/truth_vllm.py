"""`vllm bench serve` against the scripted server."""

import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class VllmFigures:
    """Milliseconds, as it reports them."""

    ttft_p50: float
    ttft_p99: float
    tpot_p50: float
    tpot_p99: float
    itl_p50: float
    itl_p99: float
    tokens_per_s: float


def find_vllm(program: str | None, tokenizer: str | None) -> tuple[Path, Path] | None:
    """The program and a folder with a tokenizer, which it makes its prompts with."""
    if not program or not tokenizer:
        return None
    if not os.access(program, os.X_OK) or not Path(tokenizer, "tokenizer.json").is_file():
        return None
    return Path(program), Path(tokenizer)


def measure_vllm(
    vllm: tuple[Path, Path], url: str, num_streams: int, num_requests: int, num_tokens: int
) -> VllmFigures | str:
    """Its figures, or why there are none. All its streams begin at once: it has no ramp."""
    program, tokenizer = vllm
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(program), "bench", "serve", "--backend", "openai-chat", "--base-url", url,
            "--endpoint", "/v1/chat/completions", "--model", "truth",
            "--tokenizer", str(tokenizer), "--dataset-name", "random",
            "--random-input-len", "100", "--random-output-len", str(num_tokens),
            "--num-prompts", str(num_requests), "--max-concurrency", str(num_streams),
            "--ignore-eos", "--disable-tqdm", "--percentile-metrics", "ttft,tpot,itl",
            "--metric-percentiles", "50,99", "--save-result", "--result-dir", folder,
            "--result-filename", "result.json",
        ]  # fmt: skip
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"vllm bench serve was not done after {TIMEOUT_S:g} s"
        path = Path(folder, "result.json")
        if done.returncode or not path.is_file():
            return f"vllm bench serve failed: {(done.stderr or done.stdout).strip()[-300:]}"
        result = json.loads(path.read_text())
    return VllmFigures(
        ttft_p50=result["p50_ttft_ms"],
        ttft_p99=result["p99_ttft_ms"],
        tpot_p50=result["p50_tpot_ms"],
        tpot_p99=result["p99_tpot_ms"],
        itl_p50=result["p50_itl_ms"],
        itl_p99=result["p99_itl_ms"],
        tokens_per_s=result["output_throughput"],
    )
