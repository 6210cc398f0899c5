"""Logits moved up or down by token: bias, repetition, presence and frequency."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carpool.engine.sampling_state import SamplingState

Logits = NDArray[np.float32]


def apply_biases(logits: Logits, states: Sequence[SamplingState]) -> None:
    """Add each row's logit_bias, and forbid the tokens that would end a row before it has its
    min_tokens. In place; float32[S, V]."""
    for row, state in enumerate(states):
        if len(state.bias_ids):
            logits[row, state.bias_ids] += state.bias_values
        if state.params.min_tokens and state.is_too_short_to_stop:
            _forbid_ends(logits[row], state)


def _forbid_ends(row: Logits, state: SamplingState) -> None:
    """Where a grammar allows nothing but an end, the text ends all the same."""
    ends = row[state.masked_ids]
    row[state.masked_ids] = -np.inf
    if state.matcher is not None and row.max() == -np.inf:
        row[state.masked_ids] = ends


def apply_penalties(logits: Logits, states: Sequence[SamplingState]) -> None:
    """Penalise tokens that are there already. In place; float32[S, V].

    Repetition (Keskar et al., 2019, CTRL, section 4.1) looks at prompt and output: a
    positive logit is divided by the penalty, a negative one multiplied. Presence and
    frequency (OpenAI's formula) look at the output alone.
    """
    for row, state in enumerate(states):
        if not state.is_penalized:
            continue
        state.count_output()
        params = state.params
        if params.repetition_penalty != 1.0:
            seen = np.union1d(state.prompt_ids, state.output_ids)
            values = logits[row, seen]
            logits[row, seen] = np.where(
                values > 0, values / params.repetition_penalty, values * params.repetition_penalty
            )
        if len(state.output_ids):
            logits[row, state.output_ids] -= (
                params.presence_penalty + params.frequency_penalty * state.output_counts
            )
