"""A draft model beside the model: what it takes, and what it gives.

Each step drafts `num_draft_tokens` and the model checks them in one pass. If a token is accepted
with probability a, a step gives (1 - a^(k + 1)) / (1 - a) tokens (Leviathan et al.,
https://arxiv.org/abs/2211.17192, equation 1).
"""

from collections import Counter
from dataclasses import fields, replace

from carpool.models.layer_cache import CacheGroup, LayerCache
from carpool.models.shape import ModelShape
from carpool.models.weight_format import WeightBytes
from carpool.planning.figure import least_sure
from carpool.planning.memory import Weights

ACCEPTANCE = (0.5, 0.7, 0.85)
"""Of a drafted token: low, usual, high; assumed, between free text and code."""


def with_draft_layers(shape: ModelShape, draft: ModelShape) -> ModelShape:
    """What both keep, for engines have them in one pool; the parameters stay the model's."""
    counts: Counter[LayerCache] = Counter()
    for group in (*shape.caches, *draft.caches):
        counts[group.cache] += group.num_layers
    caches = tuple(CacheGroup(cache, count) for cache, count in counts.items())
    return replace(shape, caches=caches, num_draft_layers=0)


def with_draft_weights(weights: Weights, draft: Weights) -> Weights:
    """Split over ranks as the model's own are."""
    names = [field.name for field in fields(WeightBytes)]
    sums = {name: getattr(weights.bytes, name) + getattr(draft.bytes, name) for name in names}
    return replace(weights, bytes=WeightBytes(**sums), known=least_sure(weights.known, draft.known))


def tokens_per_step(num_draft_tokens: int, guess: int) -> float:
    """`guess` 0 is the slow end, 1 the usual, 2 the fast end; 1 without a draft."""
    share = ACCEPTANCE[guess]
    return (1 - share ** (num_draft_tokens + 1)) / (1 - share)
