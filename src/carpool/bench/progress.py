"""How far a level is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`chunks_per_s` is of the last half second, `ttft_ms` the median of the last answers."""

    name: str
    elapsed_s: float
    is_warm_up: bool
    num_in_flight: int
    num_done: int
    num_failed: int
    output_tokens: int
    chunks_per_s: float
    ttft_ms: float | None
