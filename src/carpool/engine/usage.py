"""Token counts of an answer, the way OpenAI reports them."""

from typing import Any

from carpool.engine.generation import GenerationDelta


class Usage:
    """Adds up the choices of one HTTP request; a prompt with several choices counts once."""

    def __init__(self, num_choices_per_prompt: int) -> None:
        self._num_choices_per_prompt = num_choices_per_prompt
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._num_output_tokens = 0

    def add(self, index: int, last: GenerationDelta) -> None:
        """`last` is the delta that finished choice `index`."""
        self._num_output_tokens += last.num_output_tokens
        if index % self._num_choices_per_prompt == 0:
            self._num_prompt_tokens += last.num_prompt_tokens
            self._num_cached_tokens += last.num_cached_tokens

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._num_cached_tokens},
        }
