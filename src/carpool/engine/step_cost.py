"""What a step takes on this machine, learnt from the steps that run.

A step of `n` decodes and `p` prompt tokens is taken to need `a + b n + c p` seconds. The three
are fitted by recursive least squares that forgets (Haykin, Adaptive Filter Theory, chapter on
RLS): a step 100 steps ago counts a third of the last one.
"""

from math import ceil

import numpy as np

_FORGETTING = 0.99
_NUM_BEFORE = 8
"""Steps to have seen before anything is said."""
_WORTH = 2
_FEWEST_HELD = 8
"""A step is never free, even where the fit says so."""
_SCALE = np.array([1.0, 1 / 32, 1 / 256])
"""So that the three features are of one size."""


class StepCost:
    def __init__(self) -> None:
        self._theta = np.zeros(3)
        self._covariance = np.eye(3) * 1e3
        self._num_seen = 0
        self._has_prompts = False

    def observe(self, num_decodes: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step has run."""
        features = _SCALE * (1, num_decodes, num_prompt_tokens)
        projected = self._covariance @ features
        gain = projected / (_FORGETTING + features @ projected)
        self._theta = self._theta + gain * (seconds - features @ self._theta)
        covariance = (self._covariance - np.outer(gain, projected)) / _FORGETTING
        # Directions in which nothing is seen for long would be forgotten beyond all bounds.
        self._covariance = np.minimum(covariance, 1e3)
        self._num_seen += 1
        self._has_prompts |= num_prompt_tokens > 0

    def prompt_tokens_worth(self, num_decodes: int, at_least_s: float = 0.0) -> int | None:
        """Prompt tokens that take as long as a step of `num_decodes` without any, or as
        `at_least_s` seconds if that is more; None while too little was seen to say."""
        if self._num_seen < _NUM_BEFORE or not self._has_prompts:
            return None
        fixed_s, decode_s, prompt_s = self._theta * _SCALE
        step_s = max(at_least_s, float(fixed_s + decode_s * num_decodes))
        if prompt_s <= 0 or step_s <= 0:
            return None
        return max(1, round(step_s / float(prompt_s)))

    def decodes_worth_a_step(self) -> int | None:
        """So many decodes take `_WORTH` times what a step takes without any: to leave them out
        of one costs less than it spares the others in it. None where there is no such number,
        or too little was seen to say."""
        fixed_s, decode_s, _ = self._theta * _SCALE
        if self._num_seen < _NUM_BEFORE or decode_s <= 0:
            return None
        return max(_FEWEST_HELD, ceil(_WORTH * float(fixed_s) / float(decode_s)))
