"""Drawing tokens at a temperature, with top_k, top_p and min_p, without sorting vocabularies.

Sorting a vocabulary of 49,152 takes 3 ms a row. But the tokens that a filter keeps are
all among those with at least some share `cutoff` of the best token's probability, once
these are as many as top_k or have the mass top_p; and they are few.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carpool.engine.sampling_state import SamplingState

Rows = NDArray[np.float32]

_CUTOFF_STEP = 64.0
"""How much smaller a cutoff is tried when one leaves out tokens that may be kept."""
_LEAST_CUTOFF = 1e-7
"""Below this share of the best token's probability, every token is looked at."""
_CUTOFF_MARGIN = 4.0
"""A row's first cutoff is that share of the least weight that it kept the last time."""
_TILE = 256


def sample_unfiltered(logits: Rows, states: Sequence[SamplingState]) -> NDArray[np.int64]:
    """Draw from softmax(logits / temperature): i64[R] of float32[R, V], which is modified.

    Inverse transform: tiles of 256 tokens are summed, the tile is found, then the token.
    """
    weights = _weights(logits, states)
    num_tokens = weights.shape[1]
    tiles = np.add.reduceat(weights, np.arange(0, num_tokens, _TILE), axis=1).cumsum(
        axis=1, dtype=np.float64
    )
    token_ids = np.zeros(len(states), np.int64)
    for row, state in enumerate(states):
        target = state.uniform() * tiles[row, -1]
        tile = min(int(np.searchsorted(tiles[row], target, side="right")), tiles.shape[1] - 1)
        begin = tile * _TILE
        inside = weights[row, begin : begin + _TILE].cumsum(dtype=np.float64)
        target -= tiles[row, tile - 1] if tile else 0.0
        place = _last_with_weight(inside, int(np.searchsorted(inside, target, side="right")))
        token_ids[row] = begin + place
    return token_ids


def sample_filtered(logits: Rows, states: Sequence[SamplingState]) -> NDArray[np.int64]:
    """Draw among the tokens that min_p, then top_k, then top_p leave of
    softmax(logits / temperature): i64[R] of float32[R, V], which is modified."""
    weights = _weights(logits, states)
    totals = weights.sum(axis=1)
    token_ids = np.zeros(len(states), np.int64)
    for row, state in enumerate(states):
        total = float(totals[row])
        if math.isfinite(total):
            candidates = _candidates(weights[row], total, state)
            token_ids[row] = _draw(candidates, weights[row, candidates], total, state)
    return token_ids


def _candidates(weights: Rows, total: float, state: SamplingState) -> NDArray[np.intp]:
    """Tokens of one row, float32[V], among which are all that the filters keep. Where the
    search begins is up to the row's last token, but what is drawn is not."""
    cutoff = state.cutoff
    while cutoff >= _LEAST_CUTOFF:
        candidates = np.flatnonzero(weights >= np.float32(cutoff))
        if _holds_all_kept(weights[candidates], total, float(np.float32(cutoff)), state):
            return candidates
        cutoff /= _CUTOFF_STEP
    return np.arange(len(weights))


def _weights(logits: Rows, states: Sequence[SamplingState]) -> Rows:
    """Probabilities over that of the row's best token, in the place of the logits. A row of
    no finite maximum becomes NaN, and its first token is chosen."""
    logits -= logits.max(axis=1, keepdims=True)
    temperatures = np.array([state.params.temperature for state in states], np.float32)
    # A temperature that float32 cannot divide by leaves the best token alone.
    logits *= (1.0 / np.maximum(temperatures, 1e-6))[:, None].astype(np.float32)
    return np.exp(logits, out=logits)


def _holds_all_kept(values: Rows, total: float, cutoff: float, state: SamplingState) -> bool:
    """Whether the candidates, all tokens with a weight of at least `cutoff`, are sure to hold
    every token that the filters keep."""
    params = state.params
    if params.top_k or params.min_p:
        # top_p is a share of what these leave, so the candidates must hold all of that.
        return params.min_p >= cutoff or 0 < params.top_k <= len(values)
    return float(values.sum()) >= params.top_p * total


def _draw(candidates: NDArray[np.intp], values: Rows, total: float, state: SamplingState) -> int:
    """One of `candidates` after the filters; `total` is the weight of the whole vocabulary.

    Only the weights are sorted, which costs a tenth of sorting the tokens by them; the token
    is then looked up by its weight and, among equals, by its id, the lower first.
    """
    params = state.params
    ranked = np.sort(values)[::-1]
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    if params.min_p > 0.0:
        ranked = ranked[: int(np.count_nonzero(ranked >= np.float32(params.min_p)))]
    masses = ranked.cumsum(dtype=np.float64)
    if params.top_p < 1.0:
        whole = float(masses[-1]) if params.top_k or params.min_p else total
        # The first token that brings the mass to top_p is kept; there is always one.
        masses = masses[: int(np.searchsorted(masses, params.top_p * whole)) + 1]
    state.cutoff = min(0.1, float(ranked[len(masses) - 1]) / _CUTOFF_MARGIN)
    place = int(np.searchsorted(masses, state.uniform() * masses[-1], side="right"))
    place = _last_with_weight(masses, place)
    equals = np.flatnonzero(values == ranked[place])
    first = int(np.searchsorted(-ranked, -ranked[place]))
    return int(candidates[equals[place - first]])


def _last_with_weight(cumulative: NDArray[np.float64], place: int) -> int:
    """`place`, or the first place where the sum is complete: rounding may point past it, at
    tokens of no weight."""
    return min(place, int(np.searchsorted(cumulative, cumulative[-1])))
