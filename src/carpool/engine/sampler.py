"""From logits to tokens, for a whole batch at once.

Every row has its own settings, and what a row gives never depends on the others: the
arithmetic is row by row, and the random number of a row is a function of its request's
seed and of how many tokens it has, so a seed gives the same text alone, in any batch, and
after a preemption.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carpool.engine.generation import TokenLogprob
from carpool.engine.logprobs_of_rows import logprobs_of_rows
from carpool.engine.penalties import apply_biases, apply_penalties
from carpool.engine.sampling_state import SamplingState
from carpool.engine.token_filters import sample_filtered, sample_unfiltered

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SamplerOutput:
    """Per row: the token, and its log-probability if it was asked for; or why there is none.

    Log-probabilities are of the model's own distribution: before penalties, bias,
    temperature and filters.
    """

    token_ids: list[int]
    logprobs: list[TokenLogprob | None]
    errors: dict[int, str]


# What comes of rows that are no distribution is not looked at: they have errors.
@np.errstate(invalid="ignore")
def sample(logits: Logits, states: Sequence[SamplingState]) -> SamplerOutput:
    """Choose a token for each row of float32[S, V] `logits`, which are modified.

    `states[i]` belongs to row i. Masks of grammars are applied by the caller, before.
    """
    wanted = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    raw = logits[wanted] if wanted else None
    errors = _errors(logits)
    apply_biases(logits, states)
    apply_penalties(logits, states)
    token_ids = _choose(logits, states)
    logprobs: list[TokenLogprob | None] = [None] * len(states)
    if raw is not None:
        counts = [states[row].params.logprobs or 0 for row in wanted]
        for row, value in zip(
            wanted, logprobs_of_rows(raw, token_ids[wanted], counts), strict=True
        ):
            logprobs[row] = value
    return SamplerOutput(token_ids.tolist(), logprobs, errors)


def _choose(logits: Logits, states: Sequence[SamplingState]) -> NDArray[np.int64]:
    token_ids = np.zeros(len(states), np.int64)
    greedy = [row for row, state in enumerate(states) if state.params.is_greedy]
    unfiltered = [row for row, state in enumerate(states) if state.is_unfiltered]
    filtered = [row for row, state in enumerate(states) if state.is_filtered]
    if greedy:
        token_ids[greedy] = _rows(logits, greedy).argmax(axis=1)
    if unfiltered:
        chosen = [states[row] for row in unfiltered]
        token_ids[unfiltered] = sample_unfiltered(_rows(logits, unfiltered), chosen)
    if filtered:
        chosen = [states[row] for row in filtered]
        token_ids[filtered] = sample_filtered(_rows(logits, filtered), chosen)
    return token_ids


def _rows(logits: Logits, rows: list[int]) -> Logits:
    """The rows, copied only if they are not all of them."""
    return logits if len(rows) == len(logits) else logits[rows]


def _errors(logits: Logits) -> dict[int, str]:
    """Rows that are not a distribution: the model broke, or a grammar allows no token."""
    peaks = logits.max(axis=1)
    return {int(row): "its logits are not finite" for row in np.flatnonzero(~np.isfinite(peaks))}
