"""Deltas of the engine as chat completion chunks, or as one chat completion."""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from carpool.engine.generation import GenerationDelta, TokenLogprob
from carpool.engine.logprobs import chat_logprobs
from carpool.engine.sse import DONE, ResponseHead
from carpool.engine.tokenizer import Tokenizer
from carpool.engine.tool_calls import (
    ContentDelta,
    ToolCallArgumentsDelta,
    ToolCallEvent,
    ToolCallParser,
    ToolCallStart,
    ToolCallStyle,
)
from carpool.engine.usage import Usage
from carpool.scheduling.request import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    """How a chat is answered. `tool_style` None: text is content, whatever it looks like."""

    head: ResponseHead
    includes_usage: bool
    num_choices: int
    num_logprobs: int | None
    tool_style: ToolCallStyle | None
    is_parallel: bool


class ChatResponse:
    """Feed it every delta, either to `chunk` (a stream) or to `collect` (one body)."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:
        self._format = chat_format
        self._usage = Usage(chat_format.num_choices)
        self._choices = [
            _ChatChoice(index, tokenizer, chat_format) for index in range(chat_format.num_choices)
        ]

    def chunk(self, index: int, delta: GenerationDelta) -> bytes:
        """Server-sent events for what `delta` adds; nothing if it adds nothing to see."""
        if delta.finish_reason is not None:
            self._usage.add(index, delta)
        return self._choices[index].chunk(delta)

    def end(self) -> bytes:
        if not self._format.includes_usage:
            return DONE
        return self._format.head.usage_event(self._usage.as_dict()) + DONE

    def collect(self, index: int, delta: GenerationDelta) -> None:
        if delta.finish_reason is not None:
            self._usage.add(index, delta)
        self._choices[index].collect(delta)

    def body(self) -> dict[str, Any]:
        return {
            **self._format.head.as_dict("chat.completion"),
            "choices": [choice.as_dict() for choice in self._choices],
            "usage": self._usage.as_dict(),
        }


class _ChatChoice:
    def __init__(self, index: int, tokenizer: Tokenizer, chat_format: ChatFormat) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._num_logprobs = chat_format.num_logprobs
        self._is_parallel = chat_format.is_parallel
        style = chat_format.tool_style
        self._parser = style and ToolCallParser(style, lambda: uuid.uuid4().hex[:24])
        self._event_start, self._event_end = chat_format.head.choice_frame(
            index, "delta", chat_format.includes_usage
        )
        self._has_started = False
        self._text: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []
        self._finish_reason: str | None = None
        self._stop_reason: int | str | None = None

    def chunk(self, delta: GenerationDelta) -> bytes:
        logprobs = "null"
        if self._num_logprobs is not None and delta.logprobs:
            logprobs = json.dumps({"content": self._chat_logprobs(delta.logprobs)})
        events = []
        if not self._has_started:
            self._has_started = True
            events.append(self._event('{"role":"assistant","content":""}'))
        for fields in self._fields(delta):
            events.append(self._event(fields, logprobs))
            logprobs = "null"
        if logprobs != "null":
            events.append(self._event('{"content":""}', logprobs))
        if delta.finish_reason is not None:
            reason = self._openai_finish_reason(delta.finish_reason)
            finish = f'"{reason}","stop_reason":{json.dumps(delta.stop_reason)}'
            events.append(self._event("{}", finish=finish))
        return "".join(events).encode("ascii")

    def collect(self, delta: GenerationDelta) -> None:
        for event in self._events(delta):
            match event:
                case ContentDelta(text):
                    self._text.append(text)
                case ToolCallStart():
                    self._calls.append(_call_fields(event))
                case ToolCallArgumentsDelta(index, text):
                    self._calls[index]["function"]["arguments"] += text
        if self._num_logprobs is not None:
            self._logprobs += self._chat_logprobs(delta.logprobs)
        if delta.finish_reason is not None:
            self._finish_reason = self._openai_finish_reason(delta.finish_reason)
            self._stop_reason = delta.stop_reason

    def as_dict(self) -> dict[str, Any]:
        text = "".join(self._text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text if text or not self._calls else None,
            "refusal": None,
        }
        if self._calls:
            message["tool_calls"] = self._calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": None if self._num_logprobs is None else {"content": self._logprobs},
            "finish_reason": self._finish_reason,
            "stop_reason": self._stop_reason,
        }

    def _event(self, fields: str, logprobs: str = "null", finish: str = "null") -> str:
        return (
            f'{self._event_start}{fields},"logprobs":{logprobs},'
            f'"finish_reason":{finish}{self._event_end}'
        )

    def _fields(self, delta: GenerationDelta) -> Iterable[str]:
        """The JSON of each `delta` object to send."""
        if self._parser is None:
            return (f'{{"content":{json.dumps(delta.text)}}}',) if delta.text else ()
        return [self._event_fields(event) for event in self._events(delta)]

    def _event_fields(self, event: ToolCallEvent) -> str:
        match event:
            case ContentDelta(text):
                return json.dumps({"content": text})
            case ToolCallStart(index):
                self._calls.append({})
                return json.dumps({"tool_calls": [{"index": index, **_call_fields(event)}]})
            case ToolCallArgumentsDelta(index, text):
                more = {"index": index, "function": {"arguments": text}}
                return json.dumps({"tool_calls": [more]})

    def _events(self, delta: GenerationDelta) -> Iterable[ToolCallEvent]:
        if self._parser is None:
            return (ContentDelta(delta.text),) if delta.text else ()
        events = self._parser.feed(delta.text)
        if delta.finish_reason is not None:
            events += self._parser.finish()
        if self._is_parallel:
            return events
        return [event for event in events if isinstance(event, ContentDelta) or event.index == 0]

    def _openai_finish_reason(self, reason: FinishReason) -> str:
        return "tool_calls" if self._calls and reason is FinishReason.STOP else reason.value

    def _chat_logprobs(self, logprobs: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
        return chat_logprobs(logprobs, self._tokenizer, self._num_logprobs or 0)


def _call_fields(start: ToolCallStart) -> dict[str, Any]:
    return {
        "id": start.id,
        "type": "function",
        "function": {"name": start.name, "arguments": ""},
    }
