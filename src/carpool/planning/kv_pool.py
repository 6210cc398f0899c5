"""How far a KV cache of so many bytes goes, by each engine's rules for blocks."""

import math
from dataclasses import dataclass

from carpool.models.layer_cache import AttentionCache, StateCache
from carpool.models.shape import ModelShape
from carpool.planning.engine_kind import EngineKind
from carpool.planning.kv_bytes import EMBEDDED_BLOCK, cache_bytes_per_token
from carpool.planning.kv_dtype import KVElement, kv_element
from carpool.planning.settings import Settings
from carpool.planning.vllm_pool import BLOCK_SIZE, VllmPool, has_hybrid_groups, vllm_pool

LLAMA_CPP_PADDING = 256
"""llama.cpp rounds the cells of a cache up to this many."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What sequences take of a pool, in bytes on one rank.

    per_token: of layers that keep everything. windows: (bytes per token, tokens kept at
    most). state: of a sequence, whatever its length. shared: of the pool, whoever uses it.
    """

    per_token: float
    windows: tuple[tuple[float, int], ...] = ()
    state: float = 0.0

    def of_sequence(self, num_tokens: float) -> float:
        kept = sum(size * min(num_tokens, window) for size, window in self.windows)
        return self.per_token * num_tokens + kept + self.state


def demand(shape: ModelShape, settings: Settings, *, windows: bool = True) -> Demand:
    """By what the model keeps; `windows=False` for engines that keep windows in full."""
    per_token = state = 0.0
    kept: list[tuple[float, int]] = []
    element = kv_element(settings.kv_dtype, shape.dtype)
    in_flight = settings.max_num_batched_tokens or 0
    share = -(-shape.num_layers // settings.pipeline_parallel) / shape.num_layers
    for group in shape.caches:
        cache = group.cache
        layers = group.num_layers * share
        if isinstance(cache, StateCache):
            own = 4.0 if settings.engine is EngineKind.LLAMA_CPP else 2.0
            size = cache.num_bytes(own, settings.tensor_parallel, settings.num_draft_tokens)
            state += layers * size
            continue
        size = layers * cache_bytes_per_token(cache, element, settings)
        if isinstance(cache, AttentionCache) and cache.window and windows:
            kept.append((size, cache.window + in_flight))
        else:
            per_token += size
    per_token = (per_token + _draft_bytes(shape, settings, element)) / settings.context_parallel
    return Demand(per_token, tuple(kept), state)


def _draft_bytes(shape: ModelShape, settings: Settings, element: KVElement) -> float:
    """Draft layers keep what the last full layers do."""
    if not settings.num_draft_tokens or not shape.num_draft_layers:
        return 0.0
    for group in shape.caches:
        if not isinstance(group.cache, StateCache):
            one = cache_bytes_per_token(group.cache, element, settings)
            return shape.num_draft_layers * one
    return 0.0


@dataclass(frozen=True, slots=True)
class KVPool:
    """`kv_tokens` is what the engine reports as the size of its cache; `bytes_per_token` what
    a further token of a long sequence takes on one rank."""

    num_bytes: float
    kv_tokens: int
    bytes_per_token: float
    block_size: int
    demand: Demand
    hybrid: VllmPool | None = None
    num_blocks: int | None = None
    max_seqs_of_state: int | None = None
    """Sequences whose states fit where states have memory of their own."""

    def num_seqs(self, num_tokens: int) -> int:
        """Sequences of that length which fit at once."""
        return math.floor(self.concurrency(num_tokens) + 1e-9)

    def concurrency(self, num_tokens: int) -> float:
        """The same with its fraction, as vLLM's "maximum concurrency"."""
        if self.hybrid is not None:
            return self.hybrid.concurrency(num_tokens)
        tokens = -(-num_tokens // self.block_size) * self.block_size
        if self.max_seqs_of_state is not None:
            by_tokens = self.kv_tokens / tokens if self.demand.per_token else math.inf
            return min(by_tokens, self.max_seqs_of_state)
        size = self.demand.of_sequence(tokens)
        return self.num_bytes / size if size else math.inf


def make_pool(shape: ModelShape, settings: Settings, num_bytes: float) -> KVPool:
    """A pool of `num_bytes` on each rank (0 tokens for none or less)."""
    num_bytes = max(0.0, num_bytes)
    if shape.caches and all(isinstance(group.cache, StateCache) for group in shape.caches):
        return _state_pool(shape, settings, num_bytes)
    if settings.engine is EngineKind.VLLM and has_hybrid_groups(shape, settings):
        return _hybrid_pool(shape, settings, num_bytes)
    if settings.engine is EngineKind.SGLANG:
        return _sglang_pool(shape, settings, num_bytes)
    if settings.engine is EngineKind.LLAMA_CPP:
        return _llama_cpp_pool(shape, settings, num_bytes)
    block_size = BLOCK_SIZE if settings.engine is EngineKind.VLLM else EMBEDDED_BLOCK
    need = demand(shape, settings, windows=False)
    num_blocks = int(num_bytes / (need.per_token * block_size)) if need.per_token else 0
    if settings.engine is EngineKind.EMBEDDED:
        # No more than all sequences fill at their longest.
        length = -(-(settings.max_model_len or 1) // block_size)
        num_blocks = min(num_blocks, (settings.max_num_seqs or 1) * length)
        num_bytes = num_blocks * block_size * need.per_token
    return KVPool(
        num_bytes, num_blocks * block_size, need.per_token, block_size, need, num_blocks=num_blocks
    )


def _state_pool(shape: ModelShape, settings: Settings, num_bytes: float) -> KVPool:
    """Without attention, a sequence takes its state however long it gets: the tokens are those
    of as many sequences as fit, at their longest."""
    need = demand(shape, settings)
    if settings.engine is EngineKind.LLAMA_CPP:
        num_bytes = min(num_bytes, (settings.max_num_seqs or 1) * need.state)
    num_seqs = int(num_bytes / need.state)
    return KVPool(num_bytes, num_seqs * (settings.max_model_len or 1), 0.0, 1, need)


def _hybrid_pool(shape: ModelShape, settings: Settings, num_bytes: float) -> KVPool:
    need = demand(shape, settings)
    pool = vllm_pool(shape, settings, num_bytes)
    return KVPool(
        num_bytes,
        pool.kv_tokens(settings),
        need.per_token,
        pool.block_size,
        need,
        hybrid=pool,
        num_blocks=pool.num_blocks,
    )


SGLANG_STATE_RATIO = 0.9
"""SGLang's --mamba-full-memory-ratio: bytes of states for each byte of keys and values."""


def _sglang_pool(shape: ModelShape, settings: Settings, num_bytes: float) -> KVPool:
    """Every layer of attention keeps every token; states get a share of their own."""
    need = demand(shape, settings, windows=False)
    max_states = None
    if need.state:
        states = num_bytes * SGLANG_STATE_RATIO / (1 + SGLANG_STATE_RATIO)
        max_states = int(states / need.state)
        num_bytes -= states
    tokens = int(num_bytes / need.per_token) if need.per_token else 0
    if settings.kv_tokens is not None:
        tokens = min(tokens, settings.kv_tokens)
        num_bytes = min(num_bytes, tokens * need.per_token)
    return KVPool(num_bytes, tokens, need.per_token, 1, need, max_seqs_of_state=max_states)


def _llama_cpp_pool(shape: ModelShape, settings: Settings, num_bytes: float) -> KVPool:
    """A cell for each token of the context, which slots share or divide; windows and states
    have cells of their own for each slot."""
    need = demand(shape, settings)
    slots = settings.max_num_seqs or 1
    fixed = slots * (need.state + sum(size * _padded(window) for size, window in need.windows))
    if settings.kv_tokens:
        tokens = settings.kv_tokens
        num_bytes = tokens * need.per_token + fixed
    else:
        left = max(0.0, num_bytes - fixed)
        fit = int(left / need.per_token) if need.per_token else 0
        tokens = fit // LLAMA_CPP_PADDING * LLAMA_CPP_PADDING
    return KVPool(num_bytes, tokens, need.per_token, 1, need)


def _padded(tokens: int) -> int:
    return -(-tokens // LLAMA_CPP_PADDING) * LLAMA_CPP_PADDING
