"""A model's shape as far as memory and speed depend on it."""

from collections.abc import Iterable
from dataclasses import dataclass

from carpool.models.layer_cache import AttentionCache, CacheGroup, LatentCache, StateCache
from carpool.models.parameters import Parameters


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a layer: `intermediate_size` is of one expert."""

    num_experts: int
    num_per_token: int
    intermediate_size: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Dimensions of a decoder, from its config.json, its GGUF metadata or the catalogue.

    `max_model_len` is the context in tokens it was trained for, None if the source does not
    say. `caches` counts layers by what they keep; a layer may stand in two groups (attention
    beside a state) or in none. `dtype` is what weights have that are not quantised.
    """

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    head_dim: int
    vocab_size: int
    max_model_len: int | None
    dtype: str
    caches: tuple[CacheGroup, ...]
    parameters: Parameters
    experts: Experts | None = None
    quantization: str | None = None
    num_draft_layers: int = 0

    @property
    def attention_class(self) -> str:
        """MHA, GQA, MQA or MLA, with what else there is: "GQA + sliding window, MoE"."""
        return ", ".join(filter(None, [_attention_class(self), "MoE" if self.experts else ""]))


def _attention_class(shape: ModelShape) -> str:
    kinds = [group.cache for group in shape.caches]
    words: list[str] = []
    if any(isinstance(cache, LatentCache) for cache in kinds):
        words.append("MLA")
    if any(isinstance(cache, LatentCache) and cache.index_dim for cache in kinds):
        words.append("sparse indexer")
    heads = [cache for cache in kinds if isinstance(cache, AttentionCache)]
    if heads:
        words.append(_heads_word(heads, shape.num_attention_heads))
    if any(cache.window and not cache.is_chunked for cache in heads):
        words.append("sliding window")
    if any(cache.is_chunked for cache in heads):
        words.append("chunked attention")
    if any(isinstance(cache, StateCache) for cache in kinds):
        words.append("recurrent state" if words else "recurrent state alone")
    return " + ".join(words)


def _heads_word(caches: Iterable[AttentionCache], num_attention_heads: int) -> str:
    most = max(cache.num_kv_heads for cache in caches)
    if most == 1:
        return "MQA"
    return "MHA" if most == num_attention_heads else "GQA"
