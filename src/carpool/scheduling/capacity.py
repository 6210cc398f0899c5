"""What an engine can carry at once: the value that admission enforces."""

from dataclasses import dataclass
from enum import StrEnum


class Provenance(StrEnum):
    """How a Capacity is known; each is worth more than the one before."""

    PREDICTED = "predicted"
    """Worked out, or assumed, before the engine said anything."""
    REPORTED = "reported"
    """The engine's own words."""
    MEASURED = "measured"
    """Seen under load."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """`max_num_seqs` sequences in a step, `kv_tokens` tokens of KV cache for all of them
    together, and prompt + output of one of them at most `max_model_len` tokens.

    ValueError names the field that is below 1.
    """

    max_num_seqs: int
    kv_tokens: int
    max_model_len: int
    provenance: Provenance

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "kv_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
