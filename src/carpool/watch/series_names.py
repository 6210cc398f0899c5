"""The figures that can be read, by name."""

SKETCHES = (
    "ttft",
    "tpot",
    "queue_wait",
    "duration",
    "prompt_tokens",
    "output_tokens",
    "think",
)
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
GAUGES = (
    "waiting",
    "in_flight",
    "seats",
    "kv_reserved",
    "kv_tokens",
    "kv_usage",
    "engine_running",
    "engine_waiting",
    "replicas",
    "replicas_ready",
    "engine_memory",
    "people_active",
    "host_memory_used",
    "host_memory_total",
)
OF_HOST = ("host_memory_used", "host_memory_total")
"""Recorded once, beside what reached no model."""
SHARED_GAUGES = ("kv_usage", *OF_HOST)
"""Of several models, the highest is shown; others add up."""
COUNTERS = {
    "requests": "requests",
    "prompt_tokens.sum": "prompt_tokens",
    "cached_tokens.sum": "cached_tokens",
    "output_tokens.sum": "output_tokens",
    "preemptions": "preemptions",
    "restarts": "restarts",
    "went_down": "went_down",
}
DERIVED = ("tokens_per_second", "prefix_hit_rate")
OUTCOME = "outcome."
NAMES = (
    *(f"{name}.{part}" for name in SKETCHES for part in (*SHARES, "mean", "count")),
    *(f"{name}.{part}" for name in GAUGES for part in ("mean", "max")),
    *COUNTERS,
    *DERIVED,
)
"""And `outcome.` with any outcome."""
