"""Drawing tokens at a temperature, with top_k, top_p and min_p, without sorting vocabularies.

Sorting a vocabulary of 49,152 takes 3 ms a row. But the tokens that a filter keeps are
all among those with at least some share `cutoff` of the best token's probability, once
these are as many as top_k or have the mass top_p; and they are few.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carpool.engine.sampling_state import SamplingState

Rows = NDArray[np.float32]

_CUTOFFS = (1e-3, 1e-6, 0.0)
"""Shares of the best token's probability, tried in turn; the last takes every token."""
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
    pending = list(range(len(states)))
    for cutoff in _CUTOFFS:
        rows, columns = _at_least(weights, pending, cutoff)
        left = []
        bounds = np.searchsorted(rows, np.arange(len(pending) + 1))
        for place, row in enumerate(pending):
            candidates = columns[bounds[place] : bounds[place + 1]]
            values = weights[row, candidates]
            state = states[row]
            if cutoff and not _holds_all_kept(values, float(totals[row]), cutoff, state):
                left.append(row)
            else:
                token_ids[row] = _draw(candidates, values, state, float(totals[row]))
        pending = left
        if not pending:
            break
    return token_ids


def _weights(logits: Rows, states: Sequence[SamplingState]) -> Rows:
    """Probabilities over that of the row's best token, in the place of the logits. A row of
    no finite maximum becomes NaN, and its first token is chosen."""
    logits -= logits.max(axis=1, keepdims=True)
    temperatures = np.array([state.params.temperature for state in states], np.float32)
    # A temperature that float32 cannot divide by leaves the best token alone.
    logits *= (1.0 / np.maximum(temperatures, 1e-6))[:, None].astype(np.float32)
    return np.exp(logits, out=logits)


def _at_least(
    weights: Rows, pending: list[int], cutoff: float
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    part = weights if len(pending) == len(weights) else weights[pending]
    flat = np.flatnonzero(part >= np.float32(cutoff))
    return np.divmod(flat, weights.shape[1])


def _holds_all_kept(values: Rows, total: float, cutoff: float, state: SamplingState) -> bool:
    """Whether the candidates, all tokens with a weight of at least `cutoff`, are sure to hold
    every token that the filters keep."""
    params = state.params
    if params.top_k or params.min_p:
        # top_p is a share of what these leave, so the candidates must hold all of that.
        return params.min_p >= cutoff or 0 < params.top_k <= len(values)
    return float(values.sum()) >= params.top_p * total


def _draw(candidates: NDArray[np.intp], values: Rows, state: SamplingState, total: float) -> int:
    """One of `candidates` after the filters; `total` is the weight of the whole vocabulary."""
    if not len(candidates):
        return 0
    params = state.params
    is_cut = 0 < params.top_k < len(values)
    if is_cut:
        best = values >= np.partition(values, -params.top_k)[-params.top_k]
        candidates, values = candidates[best], values[best]
    # Among equals the lower id comes first, as without a temperature.
    order = np.argsort(-values, kind="stable")
    if is_cut:
        order = order[: params.top_k]
    if params.min_p > 0.0:
        order = order[: int(np.count_nonzero(values >= np.float32(params.min_p)))]
    masses = values[order].cumsum(dtype=np.float64)
    if params.top_p < 1.0:
        whole = float(masses[-1]) if params.top_k or params.min_p else total
        # The first token that brings the mass to top_p is kept; there is always one.
        masses = masses[: int(np.searchsorted(masses, params.top_p * whole)) + 1]
    place = int(np.searchsorted(masses, state.uniform() * masses[-1], side="right"))
    return int(candidates[order[_last_with_weight(masses, place)]])


def _last_with_weight(cumulative: NDArray[np.float64], place: int) -> int:
    """`place`, or the first place where the sum is complete: rounding may point past it, at
    tokens of no weight."""
    return min(place, int(np.searchsorted(cumulative, cumulative[-1])))
