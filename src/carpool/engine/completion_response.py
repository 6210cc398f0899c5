"""Deltas of the engine as text completion chunks, or as one text completion."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from carpool.engine.generation import GenerationDelta
from carpool.engine.logprobs import CompletionLogprobs, merged
from carpool.engine.sse import DONE, ResponseHead
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.usage import Usage
from carpool.scheduling.request import FinishReason


@dataclass(frozen=True, slots=True)
class EchoedPrompt:
    """A prompt that the answer begins with."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionFormat:
    """How a completion is answered: `num_choices` for each prompt.

    `echoes` has one entry per prompt, or none. With `is_echo_only` the one token that the
    engine has to generate is left out.
    """

    head: ResponseHead
    includes_usage: bool
    num_prompts: int
    num_choices: int
    num_logprobs: int | None
    echoes: Sequence[EchoedPrompt] = ()
    is_echo_only: bool = False

    def echo_of(self, index: int) -> EchoedPrompt | None:
        return self.echoes[index // self.num_choices] if self.echoes else None


class CompletionResponse:
    """Feed it every delta, either to `chunk` (a stream) or to `collect` (one body)."""

    def __init__(self, tokenizer: Tokenizer, completion_format: CompletionFormat) -> None:
        self._format = completion_format
        self._usage = Usage(completion_format.num_choices)
        self._choices = [
            _CompletionChoice(index, tokenizer, completion_format)
            for index in range(completion_format.num_prompts * completion_format.num_choices)
        ]

    def chunk(self, index: int, delta: GenerationDelta) -> bytes:
        """A server-sent event with what `delta` adds; nothing if it adds nothing to see."""
        return self._choices[index].chunk(self._counted(index, delta))

    def end(self) -> bytes:
        if not self._format.includes_usage:
            return DONE
        return self._format.head.usage_event(self._usage.as_dict()) + DONE

    def collect(self, index: int, delta: GenerationDelta) -> None:
        self._choices[index].collect(self._counted(index, delta))

    def body(self) -> dict[str, Any]:
        return {
            **self._format.head.as_dict("text_completion"),
            "choices": [choice.as_dict() for choice in self._choices],
            "usage": self._usage.as_dict(),
        }

    def _counted(self, index: int, delta: GenerationDelta) -> GenerationDelta:
        if self._format.is_echo_only:
            delta = _without_output(delta)
        if delta.finish_reason is not None:
            self._usage.add(index, delta)
        return delta


class _CompletionChoice:
    def __init__(
        self, index: int, tokenizer: Tokenizer, completion_format: CompletionFormat
    ) -> None:
        self._index = index
        self._echo = completion_format.echo_of(index)
        self._num_logprobs = completion_format.num_logprobs
        self._formatter = CompletionLogprobs(tokenizer, self._num_logprobs or 0)
        self._event_start, self._event_end = completion_format.head.choice_frame(
            index, "text", completion_format.includes_usage
        )
        self._text: list[str] = []
        self._logprobs: list[dict[str, list[Any]]] = []
        self._last: GenerationDelta | None = None

    def chunk(self, delta: GenerationDelta) -> bytes:
        text, logprobs = self._take(delta)
        if not text and not logprobs and delta.finish_reason is None:
            return b""
        finish = "null"
        if delta.finish_reason is not None:
            finish = f'"{delta.finish_reason.value}","stop_reason":{json.dumps(delta.stop_reason)}'
        shown = json.dumps(merged(logprobs)) if logprobs else "null"
        return (
            f'{self._event_start}{json.dumps(text)},"logprobs":{shown},'
            f'"finish_reason":{finish}{self._event_end}'
        ).encode("ascii")

    def collect(self, delta: GenerationDelta) -> None:
        text, logprobs = self._take(delta)
        self._text.append(text)
        self._logprobs += logprobs
        self._last = delta

    def as_dict(self) -> dict[str, Any]:
        last = self._last or GenerationDelta()
        return {
            "index": self._index,
            "text": "".join(self._text),
            "logprobs": None if self._num_logprobs is None else merged(self._logprobs),
            "finish_reason": last.finish_reason and last.finish_reason.value,
            "stop_reason": last.stop_reason,
        }

    def _take(self, delta: GenerationDelta) -> tuple[str, list[dict[str, list[Any]]]]:
        """Text and logprobs of `delta`, those of the echoed prompt before the first."""
        text, logprobs = delta.text, []
        if self._echo is not None:
            echo, self._echo = self._echo, None
            text = echo.text + text
            if delta.prompt_logprobs is not None:
                logprobs.append(self._formatter.prompt(echo.token_ids, delta.prompt_logprobs))
        if self._num_logprobs is not None and delta.logprobs:
            logprobs.append(self._formatter.output(delta.logprobs))
        return text, logprobs


def _without_output(delta: GenerationDelta) -> GenerationDelta:
    reason = None if delta.finish_reason is None else FinishReason.LENGTH
    return replace(
        delta,
        text="",
        token_ids=(),
        logprobs=(),
        num_output_tokens=0,
        finish_reason=reason,
        stop_reason=None,
    )
