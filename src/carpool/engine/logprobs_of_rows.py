"""Log-probabilities of chosen tokens and of their best alternatives."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carpool.engine.generation import TokenLogprob

_ROWS = 16
"""Rows of a prompt that are worked on at once: there may be thousands, of 600 KB each."""


def logprobs_of_rows(
    logits: NDArray[np.float32], token_ids: NDArray[np.int64], num_top: Sequence[int]
) -> list[TokenLogprob]:
    """For each row of float32[S, V]: the log-probability of its token and of its `num_top[i]`
    most probable tokens, best first, the lower id first among equals."""
    normalizers = np.concatenate(
        [_normalizers(logits[begin : begin + _ROWS]) for begin in range(0, len(logits), _ROWS)]
        or [np.zeros(0, np.float32)]
    )
    return [
        TokenLogprob(
            int(token),
            float(row[token] - normalizer),
            tuple((int(i), float(row[i] - normalizer)) for i in _best(row, count)),
        )
        for row, token, normalizer, count in zip(
            logits, token_ids, normalizers, num_top, strict=True
        )
    ]


def _normalizers(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    peak = logits.max(axis=1)
    shifted = logits - peak[:, None]
    normalizers: NDArray[np.float32] = peak + np.log(np.exp(shifted, out=shifted).sum(axis=1))
    return normalizers


def _best(row: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    if not count:
        return np.zeros(0, np.intp)
    candidates = np.flatnonzero(row >= np.partition(row, -count)[-count])
    return candidates[np.argsort(-row[candidates], kind="stable")[:count]]
