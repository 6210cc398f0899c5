"""What one layer keeps of one token, in bytes."""

from carpool.models.layer_cache import AttentionCache, LatentCache
from carpool.planning.engine_kind import EngineKind
from carpool.planning.settings import Settings


def cache_bytes_per_token(
    cache: AttentionCache | LatentCache, element: float, settings: Settings
) -> float:
    """Of one layer on one rank. An indexer's key has 128 bytes of fp8 and a scale; vLLM keeps
    an 8-bit latent in 656 bytes where there is one (512 + 4 scales + 64 of bf16)."""
    if isinstance(cache, LatentCache) and not settings.latent_cache:
        return cache.num_heads * (cache.key_dim + cache.value_dim) * element
    if isinstance(cache, AttentionCache) and _is_embedded_u8(element, settings):
        return _embedded_u8(cache)
    tokens = cache.elements_per_token(settings.tensor_parallel) * element
    if isinstance(cache, LatentCache) and cache.index_dim:
        is_packed = element == 1 and settings.engine is EngineKind.VLLM
        latent = cache.kv_lora_rank + 16 + 2 * cache.rope_dim if is_packed else tokens
        return latent + cache.index_dim + 4
    return tokens


EMBEDDED_BLOCK = 32
"""Tokens of a block in OpenVINO's CPU plugin."""


def _is_embedded_u8(element: float, settings: Settings) -> bool:
    return settings.engine is EngineKind.EMBEDDED and element == 1


def _embedded_u8(cache: AttentionCache) -> float:
    """OpenVINO quantises keys by channel (a scale and a zero point, 8 bytes, for each channel
    of a block) and values by token (8 bytes for each)."""
    keys = cache.key_dim * (1 + 8 / EMBEDDED_BLOCK)
    return cache.num_kv_heads * (keys + cache.value_dim + 8)
