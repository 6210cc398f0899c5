"""What one layer keeps of one token, in bytes."""

from carpool.models.layer_cache import AttentionCache, LatentCache
from carpool.planning.engine_kind import EngineKind
from carpool.planning.kv_dtype import KVElement
from carpool.planning.settings import Settings


def cache_bytes_per_token(
    cache: AttentionCache | LatentCache, element: KVElement, settings: Settings
) -> float:
    """Of one layer on one rank."""
    if isinstance(cache, LatentCache):
        return _latent(cache, element, settings)
    if settings.engine is EngineKind.EMBEDDED and element.is_8_bit:
        return _embedded_u8(cache)
    return cache.heads_on_rank(settings.tensor_parallel) * _head(cache, element)


def _head(cache: AttentionCache | LatentCache, element: KVElement) -> float:
    return cache.key_dim * element.key + cache.value_dim * element.value + 2 * element.scale


def _latent(cache: LatentCache, element: KVElement, settings: Settings) -> float:
    """An indexer's key has 128 bytes of fp8 and a scale; vLLM keeps an 8-bit latent in 656 bytes
    where there is one (512 + 4 scales + 64 of bf16)."""
    if not settings.latent_cache:
        return cache.num_heads * _head(cache, element)
    latent = (cache.kv_lora_rank + cache.rope_dim) * element.key
    if not cache.index_dim:
        return latent
    if element.is_8_bit and settings.engine is EngineKind.VLLM:
        latent = cache.kv_lora_rank + 16 + 2 * cache.rope_dim
    return latent + cache.index_dim + 4


EMBEDDED_BLOCK = 32
"""Tokens of a block in OpenVINO's CPU plugin."""


def _embedded_u8(cache: AttentionCache) -> float:
    """OpenVINO quantises keys by channel (a scale and a zero point, 8 bytes, for each channel
    of a block) and values by token (8 bytes for each)."""
    keys = cache.key_dim * (1 + 8 / EMBEDDED_BLOCK)
    return cache.num_kv_heads * (keys + cache.value_dim + 8)
