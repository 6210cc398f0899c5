"""How busy an engine says it is, from its GET /metrics."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from carpool.backends.backend import BackendKind, EngineLoad


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """What an engine calls them; "" is what it does not count."""

    num_running: str
    num_waiting: str
    kv_usage: str
    num_preemptions: str = ""


LOAD_METRICS = {
    BackendKind.EMBEDDED: LoadMetrics(
        "carpool_num_requests_running",
        "carpool_num_requests_waiting",
        "carpool_kv_cache_usage_ratio",
        "carpool_num_preemptions_total",
    ),
    BackendKind.VLLM: LoadMetrics(
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
    ),
    BackendKind.SGLANG: LoadMetrics(
        "sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage"
    ),
    BackendKind.LLAMA_CPP: LoadMetrics(
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:kv_cache_usage_ratio",
    ),
}


def parse_load(text: str, names: LoadMetrics) -> EngineLoad | None:
    """None if the counts are not in `text`. Counts add up over an engine's cores; of usages
    the highest counts. SGLang repeats its figures for every tensor-parallel rank: only the
    first is read."""
    wanted = (names.num_running, names.num_waiting, names.kv_usage, names.num_preemptions)
    values = _values(text, tuple(name for name in wanted if name))
    running, waiting = values[names.num_running], values[names.num_waiting]
    if not running or not waiting:
        return None
    usages = values[names.kv_usage]
    preemptions = values.get(names.num_preemptions)
    return EngineLoad(
        int(sum(running)),
        int(sum(waiting)),
        max(usages) if usages else None,
        int(sum(preemptions)) if preemptions else None,
    )


def _values(text: str, names: tuple[str, ...]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {name: [] for name in names}
    lines = [line for line in text.splitlines() if line.startswith(names)]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return values
    for family in families:
        for sample in family.samples:
            if sample.name in values and sample.labels.get("tp_rank", "0") == "0":
                values[sample.name].append(sample.value)
    return values
