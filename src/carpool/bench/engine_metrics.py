"""What the engine says of itself while it is measured, from its GET /metrics."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# By figure, the names under which engines report it: vLLM (versions 1 and 0), SGLang, llama.cpp,
# Carpool's own. Counters add up over an engine's cores.
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "preemptions": (
        "vllm:num_preemptions_total",
        "vllm:num_preemptions",
        "sglang:num_retractions_total",
        "carpool_num_preemptions_total",
    ),
    "prefix_queries": (
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_queries",
        "vllm:gpu_prefix_cache_queries_total",
        "carpool_prefix_cache_queries_total",
        "sglang:prompt_tokens_total",
    ),
    "prefix_hits": (
        "vllm:prefix_cache_hits_total",
        "vllm:prefix_cache_hits",
        "vllm:gpu_prefix_cache_hits_total",
        "carpool_prefix_cache_hits_total",
        "sglang:cached_tokens_total",
    ),
    "prompt_tokens": (
        "vllm:prompt_tokens_total",
        "sglang:prompt_tokens_total",
        "llamacpp:prompt_tokens_total",
        "carpool_prompt_tokens_total",
    ),
    "generation_tokens": (
        "vllm:generation_tokens_total",
        "sglang:generation_tokens_total",
        "llamacpp:tokens_predicted_total",
        "carpool_generation_tokens_total",
    ),
}
GAUGES: Mapping[str, tuple[str, ...]] = {
    "kv_usage": (
        "vllm:kv_cache_usage_perc",
        "vllm:gpu_cache_usage_perc",
        "sglang:token_usage",
        "llamacpp:kv_cache_usage_ratio",
        "carpool_kv_cache_usage_ratio",
    ),
    "running": (
        "vllm:num_requests_running",
        "sglang:num_running_reqs",
        "llamacpp:requests_processing",
        "carpool_num_requests_running",
        "carpool_gateway_requests_in_flight",
    ),
    "waiting": (
        "vllm:num_requests_waiting",
        "sglang:num_queue_reqs",
        "llamacpp:requests_deferred",
        "carpool_num_requests_waiting",
        "carpool_gateway_requests_waiting",
    ),
}
_NAMES = sorted({name for names in (*COUNTERS.values(), *GAUGES.values()) for name in names})
_SAMPLE = re.compile(
    rf"^({'|'.join(map(re.escape, _NAMES))})(\{{[^\n]*\}})?[ \t]+([-+.0-9eEinfNa]+)", re.MULTILINE
)
_OTHER_RANK = re.compile(r'tp_rank="[1-9]')


@dataclass(frozen=True, slots=True)
class EngineSample:
    """Figures by name, of `COUNTERS` and `GAUGES`; those that the engine does not report are
    missing."""

    counters: Mapping[str, float] = field(default_factory=dict)
    gauges: Mapping[str, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.counters or self.gauges)


@dataclass(frozen=True, slots=True)
class EngineChange:
    """What happened at the engine between two looks; None: it does not say.

    `prefix_hit_share`: of prompt tokens looked up. Usages are shares of its KV memory.
    """

    preemptions: int | None = None
    prefix_hit_share: float | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    mean_kv_usage: float | None = None
    max_kv_usage: float | None = None
    max_running: int | None = None
    max_waiting: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def parse_sample(text: str) -> EngineSample:
    """SGLang repeats its figures for each tensor-parallel rank: only the first is read."""
    found: dict[str, list[float]] = {}
    for name, labels, number in _SAMPLE.findall(text):
        if _OTHER_RANK.search(labels):
            continue
        try:
            value = float(number)
        except ValueError:
            continue
        if value == value:  # a gauge of nothing is NaN
            found.setdefault(name, []).append(value)
    counters = {key: total for key, names in COUNTERS.items() if (total := _sum(found, names))}
    gauges = {}
    for key, names in GAUGES.items():
        values = next((found[name] for name in names if name in found), None)
        if values:
            gauges[key] = max(values) if key == "kv_usage" else sum(values)
    return EngineSample({key: value[0] for key, value in counters.items()}, gauges)


def change(samples: Sequence[EngineSample]) -> EngineChange | None:
    """From the first look to the last, with the gauges of all; None if there was nothing."""
    seen = [sample for sample in samples if sample]
    if not seen:
        return None
    first, last = seen[0], seen[-1]

    def grown(name: str) -> int | None:
        if name not in last.counters or last.counters[name] < first.counters.get(name, 0.0):
            return None  # an engine that was started again counts from 0
        return round(last.counters[name] - first.counters.get(name, 0.0))

    queries, hits = grown("prefix_queries"), grown("prefix_hits")
    usages = [each.gauges["kv_usage"] for each in seen if "kv_usage" in each.gauges]
    return EngineChange(
        preemptions=grown("preemptions"),
        prefix_hit_share=(hits or 0) / queries if queries and hits is not None else None,
        prompt_tokens=grown("prompt_tokens"),
        generation_tokens=grown("generation_tokens"),
        mean_kv_usage=sum(usages) / len(usages) if usages else None,
        max_kv_usage=max(usages) if usages else None,
        max_running=_highest(seen, "running"),
        max_waiting=_highest(seen, "waiting"),
    )


def _sum(found: Mapping[str, list[float]], names: Sequence[str]) -> tuple[float] | None:
    """In a tuple: 0 is a figure, too."""
    values = next((found[name] for name in names if name in found), None)
    return None if values is None else (sum(values),)


def _highest(samples: Sequence[EngineSample], name: str) -> int | None:
    values = [each.gauges[name] for each in samples if name in each.gauges]
    return round(max(values)) if values else None
