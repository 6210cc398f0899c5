"""vLLM: `vllm serve`, https://docs.vllm.ai/en/latest/configuration/engine_args.html"""

import re
from collections.abc import Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from carpool.backends.backend import BackendKind, Command, PriorityOrder, Quirks
from carpool.backends.capacity_facts import CapacityFacts, positive_int
from carpool.backends.http_backend import HttpBackend
from carpool.backends.local_port import local_address, new_api_key

MAX_NUM_SEQS = 256
"""vLLM's default on most devices; it tells nobody the value that it runs with."""

_KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
_MAX_NUM_SEQS = re.compile(r"'max_num_seqs': (\d+)")
_MAX_MODEL_LEN = re.compile(r"\bmax_seq_len=(\d+)|Using max model len (\d+)")
_CACHE_CONFIG = "vllm:cache_config_info"


class VllmBackend(HttpBackend):
    """vLLM. It listens only once it is loaded, and `priority` sends low values first (if it
    runs with `--scheduling-policy priority`)."""

    kind = BackendKind.VLLM
    quirks = Quirks(health_path="/health", priority_order=PriorityOrder.LOW_FIRST)
    defaults = CapacityFacts(max_num_seqs=MAX_NUM_SEQS, max_model_len=4096)

    def facts_of_line(self, line: str) -> CapacityFacts:
        return parse_log_line(line)

    async def read_facts(self) -> CapacityFacts:
        metrics = await self._get_body("/metrics")
        return parse_metrics(metrics.decode("utf-8", "replace")).or_else(await super().read_facts())


def launch_vllm(
    name: str,
    model: str,
    *,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_model_len: int | None = None,
    options: Sequence[str] = (),
    executable: str = "vllm",
) -> VllmBackend:
    """`vllm serve MODEL` on a port of its own, with a key of its own; `options` are more of
    its arguments."""
    address, api_key = local_address(), new_api_key()
    argv = [executable, "serve", model, "--host", address.host, "--port", str(address.port)]
    argv += ["--max-num-seqs", str(max_num_seqs), "--disable-uvicorn-access-log"]
    if max_model_len is not None:
        argv += ["--max-model-len", str(max_model_len)]
    env = {"VLLM_API_KEY": api_key, "VLLM_NO_USAGE_STATS": "1"}
    command = Command((*argv, *options), env)
    known = CapacityFacts(max_num_seqs=max_num_seqs)
    return VllmBackend(name, address, known=known, api_key=api_key, command=command)


def parse_log_line(line: str) -> CapacityFacts:
    """A line of the start-up log."""
    kv_tokens = _KV_TOKENS.search(line)
    max_num_seqs = _MAX_NUM_SEQS.search(line)
    max_model_len = _MAX_MODEL_LEN.search(line)
    return CapacityFacts(
        positive_int(max_num_seqs[1]) if max_num_seqs else None,
        positive_int(kv_tokens[1].replace(",", "")) if kv_tokens else None,
        positive_int(max_model_len[1] or max_model_len[2]) if max_model_len else None,
    )


def parse_metrics(text: str) -> CapacityFacts:
    """The labels of `vllm:cache_config_info` in GET /metrics, one series for each engine
    core. The pool in tokens where it is given; blocks x block size counts a pool that is
    shared by several kinds of attention wrongly, but is all that older versions tell."""
    lines = [line for line in text.splitlines() if line.startswith(_CACHE_CONFIG)]
    if not lines:
        return CapacityFacts()
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return CapacityFacts()
    pools = [_pool_tokens(sample.labels) for family in families for sample in family.samples]
    known = [tokens for tokens in pools if tokens is not None]
    return CapacityFacts(kv_tokens=sum(known) if known and len(known) == len(pools) else None)


def _pool_tokens(labels: Mapping[str, str]) -> int | None:
    if (tokens := positive_int(labels.get("kv_cache_size_tokens"))) is not None:
        return tokens
    num_blocks = positive_int(labels.get("num_gpu_blocks"))
    block_size = positive_int(labels.get("block_size"))
    return None if num_blocks is None or block_size is None else num_blocks * block_size
