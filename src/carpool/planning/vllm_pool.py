"""vLLM's pool of blocks where layers keep different things (its hybrid KV cache manager).

https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager.html, and
vllm/v1/core/kv_cache_utils.py. Layers that keep the same form groups of one size; a block
holds one page for each layer of a group and belongs to one group at a time, so all groups
have pages of one size: smaller ones take more tokens to a block, states are padded.
"""

import math
from dataclasses import dataclass

from carpool.models.layer_cache import AttentionCache, StateCache
from carpool.models.shape import ModelShape
from carpool.planning.engine_kind import Version
from carpool.planning.kv_bytes import cache_bytes_per_token
from carpool.planning.kv_dtype import kv_element
from carpool.planning.settings import Settings

BLOCK_SIZE = 16
HYBRID_SINCE: Version = (0, 9, 2)
"""Before, windows were kept in full."""
TOKENS_BY_CONCURRENCY_SINCE: Version = (0, 20, 1)
"""From here on "KV cache size" is maximum concurrency times max_model_len."""
CACHED_STATES = 2
"""Blocks that a sequence has of a state with prefix caching: the current one and the last that
others may start from. One without, and one more for each token that is speculated ahead."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers that keep the same; `window` None keeps every token, `is_state` none."""

    num_layers: int
    bytes_per_token: float
    window: int | None = None
    is_state: bool = False


@dataclass(frozen=True, slots=True)
class _Group:
    """`num_groups` groups whose blocks hold `block_size` tokens each."""

    num_groups: int
    block_size: int
    window: int | None
    is_state: bool

    def num_blocks(self, num_tokens: int, in_flight: int, num_states: int) -> int:
        """Of one sequence of `num_tokens`."""
        if self.is_state:
            return self.num_groups * num_states
        blocks = -(-num_tokens // self.block_size)
        if self.window is not None:
            kept = min(self.window - 1 + in_flight, num_tokens)
            blocks = -(-kept // self.block_size) + 1
        return self.num_groups * blocks


@dataclass(frozen=True, slots=True)
class VllmPool:
    """`num_blocks` blocks of `bytes_per_block`, whichever group takes them."""

    num_blocks: int
    bytes_per_block: float
    block_size: int
    groups: tuple[_Group, ...]
    in_flight: int
    num_states: int
    """Blocks of states that one sequence has in each group."""

    @property
    def num_groups(self) -> int:
        return sum(group.num_groups for group in self.groups)

    def concurrency(self, num_tokens: int) -> float:
        """Sequences of `num_tokens` at once."""
        blocks = [g.num_blocks(num_tokens, self.in_flight, self.num_states)
                  for g in self.groups]  # fmt: skip
        return self.num_blocks / sum(blocks)

    def kv_tokens(self, settings: Settings) -> int:
        """What the log says, see `TOKENS_BY_CONCURRENCY_SINCE`."""
        if settings.version is None or settings.version >= TOKENS_BY_CONCURRENCY_SINCE:
            length = settings.max_model_len or 1
            return int(self.concurrency(length) * length)
        return self.num_blocks // self.num_groups * self.block_size


def has_hybrid_groups(shape: ModelShape, settings: Settings) -> bool:
    """Whether layers keep different things as far as this version sees."""
    if settings.version is not None and settings.version < HYBRID_SINCE:
        return False
    return len(shape.caches) > 1


def vllm_pool(shape: ModelShape, settings: Settings, num_bytes: float) -> VllmPool:
    """Needs at least two kinds of layers, see `has_hybrid_groups`."""
    kinds = _kinds(shape, settings)
    page, block_size = _page(kinds)
    size = _group_size([kind.num_layers for kind in kinds])
    groups = tuple(
        _Group(
            -(-kind.num_layers // size),
            block_size if kind.is_state else max(1, int(page / kind.bytes_per_token)),
            kind.window,
            kind.is_state,
        )
        for kind in kinds
    )
    bytes_per_block = page * size
    return VllmPool(
        int(num_bytes / bytes_per_block),
        bytes_per_block,
        block_size,
        groups,
        settings.max_num_batched_tokens or 0,
        settings.num_draft_tokens + (CACHED_STATES if settings.prefix_caching else 1),
    )


def _kinds(shape: ModelShape, settings: Settings) -> list[_Kind]:
    element = kv_element(settings.kv_dtype, shape.dtype)
    kinds: list[_Kind] = []
    for group in shape.caches:
        cache, count = group.cache, -(-group.num_layers // settings.pipeline_parallel)
        if isinstance(cache, StateCache):
            size = cache.num_bytes(2.0, settings.tensor_parallel, settings.num_draft_tokens)
            kinds.append(_Kind(count, size, is_state=True))
            continue
        window = cache.window if isinstance(cache, AttentionCache) else None
        if window is None and settings.num_draft_tokens:
            count += shape.num_draft_layers
        size = cache_bytes_per_token(cache, element, settings)
        kinds.append(_Kind(count, size, window))
    return kinds


def _page(kinds: list[_Kind]) -> tuple[float, int]:
    """Bytes of a page and tokens of the largest attention in it."""
    attention = [kind.bytes_per_token for kind in kinds if not kind.is_state]
    largest = max(attention)
    states = [kind.bytes_per_token for kind in kinds if kind.is_state]
    tokens = BLOCK_SIZE
    if states:
        tokens = max(tokens, math.ceil(max(states) / largest / BLOCK_SIZE) * BLOCK_SIZE)
    return largest * tokens, tokens


def _group_size(counts: list[int]) -> int:
    """Layers of a group: the fewest of a kind, or the most where they are nearly as many."""
    fewest, most = min(counts), max(counts)
    return most if most < 1.25 * fewest else fewest
