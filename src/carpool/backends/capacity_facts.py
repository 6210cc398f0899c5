"""What is known of a Capacity so far: engines tell it in pieces."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carpool.scheduling.capacity import Capacity, Provenance


@dataclass(frozen=True, slots=True)
class CapacityFacts:
    """The fields of a Capacity, None where nothing was said."""

    max_num_seqs: int | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None

    def or_else(self, other: "CapacityFacts") -> "CapacityFacts":
        """These facts, and `other`'s where these say nothing."""
        return CapacityFacts(
            _first(self.max_num_seqs, other.max_num_seqs),
            _first(self.kv_tokens, other.kv_tokens),
            _first(self.max_model_len, other.max_model_len),
        )

    def capacity(self, defaults: "CapacityFacts") -> Capacity:
        """Predicted if any field had to be assumed. An unknown KV cache is assumed to hold
        `max_num_seqs` sequences of `max_model_len`: then only the seats limit."""
        both = self.or_else(defaults)
        max_num_seqs = both.max_num_seqs or 1
        max_model_len = both.max_model_len or both.kv_tokens or 1
        is_known = None not in (self.max_num_seqs, self.kv_tokens, self.max_model_len)
        return Capacity(
            max_num_seqs,
            both.kv_tokens or max_num_seqs * max_model_len,
            max_model_len,
            Provenance.REPORTED if is_known else Provenance.PREDICTED,
        )


def positive_int(value: Any) -> int | None:
    """`value` as a whole number above 0; None for anything else ("None", null, "", 0)."""
    if isinstance(value, bool):
        return None
    try:
        number = int(float(value))
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number > 0 else None


def json_object(text: str | bytes) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def parse_models(
    text: str | bytes, model: str | None = None
) -> tuple[tuple[str, ...], CapacityFacts]:
    """The names in an answer to GET /v1/models, and how long `model` (None: the first) may
    get: `max_model_len` in vLLM, SGLang and the embedded engine, `context_length` in hosts."""
    data = json_object(text).get("data")
    models = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    names = tuple(entry["id"] for entry in models if isinstance(entry.get("id"), str))
    asked = next((entry for entry in models if model in (None, entry.get("id"))), {})
    length = asked.get("max_model_len") or asked.get("context_length")
    return names, CapacityFacts(max_model_len=positive_int(length))


def _first(value: int | None, other: int | None) -> int | None:
    return other if value is None else value
