"""What the sampler keeps of one request between its tokens."""

import numpy as np
from numpy.typing import NDArray

from carpool.engine.guidance import GrammarMatcher
from carpool.engine.sampling_params import SamplingParams
from carpool.scheduling.request import Request

_MASK = (1 << 64) - 1


class SamplingState:
    """A request's settings, its seed, and its tokens counted as far as penalties need them.

    `seed` is the request's own, or drawn when it was added. Token counts follow
    `request.all_token_ids`, whose border between prompt and output never moves, so a
    preemption changes nothing. `cutoff` is where `token_filters` begins to look.
    """

    __slots__ = (
        "_num_counted",
        "bias_ids",
        "bias_values",
        "cutoff",
        "is_filtered",
        "is_grammar_broken",
        "is_penalized",
        "is_unfiltered",
        "masked_ids",
        "matcher",
        "output_counts",
        "output_ids",
        "params",
        "prompt_ids",
        "request",
        "seed",
    )

    def __init__(
        self,
        request: Request,
        params: SamplingParams,
        seed: int,
        eos_token_ids: frozenset[int] = frozenset(),
        matcher: GrammarMatcher | None = None,
    ) -> None:
        self.request = request
        self.params = params
        self.seed = seed & _MASK
        self.matcher = matcher
        self.is_grammar_broken = False
        self.cutoff = 0.01
        filters = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self.is_filtered = not params.is_greedy and filters
        self.is_unfiltered = not params.is_greedy and not filters
        self.is_penalized = (
            params.repetition_penalty != 1.0
            or params.presence_penalty != 0.0
            or params.frequency_penalty != 0.0
        )
        self.bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self.bias_values = np.array([value for _, value in params.logit_bias], np.float32)
        self.masked_ids = np.array(sorted(params.stop_token_ids | eos_token_ids), np.int64)
        self.prompt_ids = (
            np.unique(np.array(request.all_token_ids[: request.num_prompt_tokens], np.int64))
            if params.repetition_penalty != 1.0
            else np.zeros(0, np.int64)
        )
        self.output_ids: NDArray[np.int64] = np.zeros(0, np.int64)
        self.output_counts: NDArray[np.float32] = np.zeros(0, np.float32)
        self._num_counted = 0

    @property
    def is_too_short_to_stop(self) -> bool:
        """Whether it still owes tokens of its min_tokens; what its grammar ends has ended."""
        if self.matcher is not None and self.matcher.is_terminated:
            return False
        return self.request.num_output_tokens < self.params.min_tokens

    def count_output(self) -> None:
        """Bring `output_ids` and `output_counts` level with the request's output."""
        output = self.request.output_token_ids
        if len(output) != self._num_counted:
            ids, counts = np.unique(np.array(output, np.int64), return_counts=True)
            self.output_ids, self.output_counts = ids, counts.astype(np.float32)
            self._num_counted = len(output)

    def uniform(self) -> float:
        """The request's random number in [0, 1) for its next token: splitmix64 of its seed and
        the number of tokens it has (Steele et al., OOPSLA 2014)."""
        mixed = (self.seed + 0x9E3779B97F4A7C15 * (self.request.num_output_tokens + 1)) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53
