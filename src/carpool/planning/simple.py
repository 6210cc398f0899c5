"""The formula that everybody writes on a napkin, to hold the refined plan against."""

from dataclasses import dataclass

from carpool.planning.figure import GIB

OVERHEAD_GIB = 2.0
"""Whatever is neither weights nor KV cache, says the napkin."""


@dataclass(frozen=True, slots=True)
class SimplePlan:
    """GiB of a whole device, all layers keeping every token."""

    weights_gib: float
    kv_gib: float
    bytes_per_token: float

    def num_seqs(self, num_tokens: int) -> int:
        return max(0, int(self.kv_gib * GIB / (self.bytes_per_token * num_tokens)))


def simple_plan(
    device_gib: float, num_parameters: float, weight_bits: float, bytes_per_token: float
) -> SimplePlan:
    """memory = parameters * bits / 8 + overhead + KV cache."""
    weights = num_parameters * weight_bits / 8 / GIB
    return SimplePlan(weights, device_gib - weights - OVERHEAD_GIB, bytes_per_token)


def dense_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, kv_bits: float = 16
) -> float:
    """Keys and values: 2 * layers * KV heads * head dimension * bytes."""
    return 2 * num_layers * num_kv_heads * head_dim * kv_bits / 8
