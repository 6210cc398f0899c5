"""What one layer of a model keeps of the tokens it has seen, by kind of attention."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AttentionCache:
    """Keys and values of each token: MHA, GQA and MQA alike.

    `key_dim` and `value_dim` are per KV head. With a `window`, tokens that are further back
    than that are forgotten; `is_chunked` says that the window does not slide but starts anew.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None = None
    is_chunked: bool = False

    def elements_per_token(self, tensor_parallel: int = 1) -> int:
        return self.heads_on_rank(tensor_parallel) * (self.key_dim + self.value_dim)

    def heads_on_rank(self, tensor_parallel: int) -> int:
        """Of one of so many; heads are replicated when there are too few."""
        return max(1, self.num_kv_heads // tensor_parallel)


@dataclass(frozen=True, slots=True)
class LatentCache:
    """MLA: one compressed vector for all heads, and the part of the key with positions.

    `index_dim` is the extra key of a sparse indexer (DSA), 0 without one. `num_heads`,
    `key_dim` and `value_dim` are what engines keep that do not know MLA.
    """

    kv_lora_rank: int
    rope_dim: int
    num_heads: int
    key_dim: int
    value_dim: int
    index_dim: int = 0

    def elements_per_token(self, tensor_parallel: int = 1) -> int:
        """The same on every rank: the vector serves all heads."""
        return self.kv_lora_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class StateCache:
    """Mamba, linear attention or a short convolution: a state of constant size.

    Elements of one sequence. `conv_width` of them are added for each token that is
    speculated ahead; `recurrent_bytes` is the size of a recurrent element, None for the
    type of the cache.
    """

    conv_elements: int
    conv_width: int
    recurrent_elements: int
    recurrent_bytes: int | None = None

    def num_bytes(self, dtype_bytes: float, tensor_parallel: int = 1, num_ahead: int = 0) -> float:
        """Of one sequence on one rank."""
        conv = (self.conv_elements + num_ahead * self.conv_width) * dtype_bytes
        recurrent = self.recurrent_elements * (self.recurrent_bytes or dtype_bytes)
        return (conv + recurrent) / tensor_parallel


LayerCache = AttentionCache | LatentCache | StateCache


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """`num_layers` layers that keep the same."""

    cache: LayerCache
    num_layers: int
