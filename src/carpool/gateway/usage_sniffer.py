"""What an answer cost: the tokens an engine reports, or an estimate when it did not get to.

Streams of the chat and completions APIs report usage only when asked: `usage_request` asks in
the client's place, and the sniffer takes the chunk out again that the client did not ask for.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.sse_events import data_of

_ASKS_FOR_USAGE = (ApiKind.CHAT, ApiKind.COMPLETIONS)
# Text that is not empty: one chunk of it is taken for one token. Within a JSON string a quote
# is escaped, so what matches is a field.
_CHAT_TEXT = rb'"(?:content|text|reasoning_content|reasoning|refusal|arguments)": ?"[^"]'
_TEXT_CHUNK = {
    ApiKind.CHAT: re.compile(_CHAT_TEXT),
    ApiKind.COMPLETIONS: re.compile(_CHAT_TEXT),
    ApiKind.RESPONSES: re.compile(rb'"delta": ?"[^"]'),
    ApiKind.MESSAGES: re.compile(rb'"(?:text|thinking|partial_json)": ?"[^"]'),
}
_USAGE_FIELD = re.compile(rb'"usage"\s*:\s*\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')
_NO_USAGE = re.compile(rb'"usage": ?null')


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens. `prompt_tokens` includes `cached_tokens`. `source`: "reported" or "estimated"."""

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    source: str


NOTHING_USED = Usage(0, 0, 0, "reported")


def usage_request(kind: ApiKind, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The change to a request that makes its stream report usage; empty if none is needed."""
    if kind not in _ASKS_FOR_USAGE or fields.get("stream") is not True or is_asked(fields):
        return {}
    options = fields.get("stream_options")
    known = options if isinstance(options, dict) else {}
    return {"stream_options": {**known, "include_usage": True}}


def is_asked(fields: Mapping[str, Any]) -> bool:
    """Whether the client itself asked for the usage chunk of a stream."""
    options = fields.get("stream_options")
    return isinstance(options, dict) and options.get("include_usage") is True


class UsageSniffer:
    """Watches one answer go by. Of several reports the last that is not null counts, field by
    field, and a reported 0 is a 0."""

    __slots__ = (
        "_cached",
        "_find_text",
        "_is_chunk_hidden",
        "_kind",
        "_output",
        "_prompt",
        "num_text_chunks",
    )

    def __init__(self, kind: ApiKind, *, is_chunk_hidden: bool) -> None:
        """`is_chunk_hidden`: the chunk that holds nothing but usage is not for the client."""
        self.num_text_chunks = 0
        self._kind = kind
        self._is_chunk_hidden = is_chunk_hidden
        self._prompt: int | None = None
        self._cached: int | None = None
        self._output: int | None = None
        pattern = _TEXT_CHUNK.get(kind)
        self._find_text = pattern.search if pattern else None

    def see_event(self, event: bytes) -> bool:
        """Takes note of an event; whether the client is to have it."""
        if self._find_text is not None and self._find_text(event):
            self.num_text_chunks += 1
        if b'"usage"' not in event or _NO_USAGE.search(event):
            return True
        try:
            chunk = json.loads(data_of(event))
        except ValueError:  # not ours to judge
            return True
        if not isinstance(chunk, dict):
            return True
        self.see_body(chunk)
        return not (
            self._is_chunk_hidden
            and chunk.get("choices") == []
            and isinstance(chunk.get("usage"), dict)
        )

    def see_whole(self, raw: bytes) -> None:
        """Takes note of a whole body."""
        if self._kind is ApiKind.EMBEDDINGS:  # megabytes of numbers that nobody here reads
            raw = b"{" + _last_usage(raw) + b"}"
        try:
            body = json.loads(raw.decode())
        except ValueError:
            return
        if isinstance(body, dict):
            self.see_body(body)

    def see_body(self, body: Mapping[str, Any]) -> None:
        """Takes the usage out of a whole body, or of the JSON of one event."""
        match self._kind:
            case ApiKind.MESSAGES:
                self._see_messages(body)
            case ApiKind.RESPONSES:
                response = body.get("response")
                self._see_responses(response if isinstance(response, dict) else body)
            case _:
                self._see_chat(body)

    def usage(self, prompt_estimate: int) -> Usage:
        """What is known by now; what is not is estimated, the output by the chunks of text."""
        is_reported = self._prompt is not None and self._output is not None
        prompt = self._prompt if self._prompt is not None else prompt_estimate
        output = self._output if self._output is not None else self.num_text_chunks
        return Usage(prompt, self._cached or 0, output, "reported" if is_reported else "estimated")

    def _see_chat(self, body: Mapping[str, Any]) -> None:
        usage = _object(body, "usage")
        self._take(
            _count(usage, "prompt_tokens"),
            _count(_object(usage, "prompt_tokens_details"), "cached_tokens"),
            _count(usage, "completion_tokens"),
        )
        if self._kind is ApiKind.EMBEDDINGS and self._prompt is not None:
            self._output = 0

    def _see_responses(self, body: Mapping[str, Any]) -> None:
        usage = _object(body, "usage")
        self._take(
            _count(usage, "input_tokens"),
            _count(_object(usage, "input_tokens_details"), "cached_tokens"),
            _count(usage, "output_tokens"),
        )

    def _see_messages(self, body: Mapping[str, Any]) -> None:
        """Input counts leave out what came from or went to the cache; the output count of the
        first event, `message_start`, is not the answer's."""
        message = body.get("message")
        is_start = isinstance(message, dict)
        usage = _object(message if isinstance(message, dict) else body, "usage")
        cached = _count(usage, "cache_read_input_tokens")
        prompt = _count(usage, "input_tokens")
        if prompt is not None:
            prompt += (cached or 0) + (_count(usage, "cache_creation_input_tokens") or 0)
        self._take(prompt, cached, None if is_start else _count(usage, "output_tokens"))

    def _take(self, prompt: int | None, cached: int | None, output: int | None) -> None:
        self._prompt = self._prompt if prompt is None else prompt
        self._cached = self._cached if cached is None else cached
        self._output = self._output if output is None else output


def _last_usage(raw: bytes) -> bytes:
    """The last field `usage` with objects at most one deep in it."""
    found = _USAGE_FIELD.search(raw, max(0, raw.rfind(b'"usage"')))
    return found[0] if found else b""


def _object(holder: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = holder.get(name)
    return value if isinstance(value, dict) else {}


def _count(holder: Mapping[str, Any], name: str) -> int | None:
    """A count of tokens, or None for what is none."""
    value = holder.get(name)
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else None
