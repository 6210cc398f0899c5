"""Tokens of one request as text: whole characters, and nothing of a stop string."""

from carpool.engine.core import TokenOutput
from carpool.engine.detokenizer import IncrementalDetokenizer
from carpool.engine.generation import GenerationDelta, GenerationRequest
from carpool.engine.stop_strings import StopStringMatcher
from carpool.engine.vocabulary import Vocabulary
from carpool.scheduling.request import FinishReason


class TextStream:
    """Turns `TokenOutput`s into `GenerationDelta`s, the last with a finish reason: the
    engine's own, or STOP as soon as a stop string is there."""

    def __init__(self, request: GenerationRequest, vocabulary: Vocabulary) -> None:
        self._request = request
        self._detokenizer = IncrementalDetokenizer(
            vocabulary, skip_special_tokens=request.skip_special_tokens
        )
        self._stops = StopStringMatcher(request.stop)
        self._num_output_tokens = 0

    def add(self, output: TokenOutput) -> GenerationDelta:
        text = ""
        # The end of a text is no reason to name; a stop token of the client's is.
        is_asked_for = output.stop_reason in self._request.sampling.stop_token_ids
        stop_reason: int | str | None = output.stop_reason if is_asked_for else None
        finish_reason = output.finish_reason
        for token_id in output.token_ids:
            self._num_output_tokens += 1
            # The token that ends a text is not part of it.
            if token_id != output.stop_reason:
                text += self._pass(self._detokenizer.add(token_id))
        if finish_reason is not None and self._stops.matched is None:
            text += self._pass(self._detokenizer.finish())
            text += self._stops.finish()
        if self._stops.matched is not None:
            finish_reason, stop_reason = FinishReason.STOP, self._stops.matched
        return GenerationDelta(
            text=text,
            token_ids=output.token_ids,
            logprobs=output.logprobs,
            prompt_logprobs=output.prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            num_prompt_tokens=len(self._request.prompt_token_ids),
            num_cached_tokens=output.num_cached_tokens,
            num_output_tokens=self._num_output_tokens,
            error=output.error,
        )

    def _pass(self, text: str) -> str:
        """`text` as far as it can be shown. Stop strings end a text only after min_tokens."""
        if self._num_output_tokens < self._request.sampling.min_tokens:
            return text
        return self._stops.feed(text)
