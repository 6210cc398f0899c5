"""Reads an answer out of the bytes that came: which chunk held a token, and when."""

import json
from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from carpool.bench.exchange import Exchange
from carpool.gateway.sse_events import EventSplitter, data_of
from carpool.gateway.upstream_errors import Malformed

MAX_ERROR_CHARS = 300
_REASONING = ("reasoning_content", "reasoning")
_ERROR_KINDS = {
    400: "bad_request",
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    408: "timeout",
    429: "rate_limited",
    503: "overloaded",
    504: "timeout",
}


class Answer:
    """`read` goes through an exchange; then the fields stand.

    `text` is the answer alone, without reasoning: the next turn of a conversation quotes it.
    """

    def __init__(self) -> None:
        self.first_token: float | None = None
        self.first_answer_token: float | None = None
        self.token_times = array("d")
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.error_text = ""
        self.is_stream = True
        self._text: list[str] = []
        self._is_done = False

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def last_token(self) -> float | None:
        return self.token_times[-1] if self.token_times else None

    def read(self, exchange: Exchange) -> Iterator[None]:
        """Yields after each piece, so that a reader with other things to do can interrupt."""
        if exchange.status >= 400 or (exchange.status and exchange.status != 200):
            self._fail(_kind_of(exchange.status), _error_text(b"".join(exchange.pieces)))
        elif b"text/event-stream" in exchange.headers.get(b"content-type", b""):
            yield from self._read_events(exchange)
        elif exchange.pieces:
            self._read_whole(exchange)
        if exchange.error is not None:
            self._fail(exchange.error, exchange.error_text)
        elif self.error is None:
            self._check_end()

    def _read_events(self, exchange: Exchange) -> Iterator[None]:
        splitter = EventSplitter()
        for now, piece in zip(exchange.times, exchange.pieces, strict=True):
            try:
                events = splitter.feed(piece)
            except Malformed as error:
                self._fail("malformed", str(error))
                return
            for event in events:
                self._see_event(event, now)
            yield
        if splitter.rest and exchange.times:  # a last line without its line break
            self._see_event(splitter.rest, exchange.times[-1])

    def _see_event(self, event: bytes, now: float) -> None:
        data = data_of(event)
        if not data:
            return
        if data == b"[DONE]":
            self._is_done = True
            return
        try:
            chunk = json.loads(data)
        except ValueError:
            self._fail("malformed", f"an event is no JSON: {_shown(data)}")
            return
        if isinstance(chunk, dict):
            self._see_chunk(chunk, now, "delta")

    def _read_whole(self, exchange: Exchange) -> None:
        """An answer in one piece, though a stream was asked for: its first token is its end."""
        self.is_stream = False
        try:
            body = json.loads(b"".join(exchange.pieces))
        except ValueError:
            self._fail("malformed", f"the answer is no JSON: {_shown(b''.join(exchange.pieces))}")
            return
        self._is_done = True
        if isinstance(body, dict):
            self._see_chunk(body, exchange.ended, "message")

    def _see_chunk(self, chunk: Mapping[str, Any], now: float, name: str) -> None:
        if chunk.get("error"):
            self._fail("error_event", _message_of(chunk))
            return
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._see_usage(usage)
        is_token = is_answer = False
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if not isinstance(choice, dict):
                continue
            reason = choice.get("finish_reason")
            if isinstance(reason, str):
                self.finish_reason = reason
            part = choice.get(name)
            text, has_other, has_reasoning = _tokens_of(part if isinstance(part, dict) else choice)
            if text:
                self._text.append(text)
            is_answer = is_answer or bool(text) or has_other
            is_token = is_token or is_answer or has_reasoning
        if is_token:
            self.token_times.append(now)
            if self.first_token is None:
                self.first_token = now
        if is_answer and self.first_answer_token is None:
            self.first_answer_token = now

    def _see_usage(self, usage: Mapping[str, Any]) -> None:
        """The last report counts."""
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        self.cached_tokens = _count(cached, self.cached_tokens)
        self.completion_tokens = _count(usage.get("completion_tokens"), self.completion_tokens)

    def _check_end(self) -> None:
        if not (self._is_done or self.finish_reason):
            self._fail("cut", "the stream ended before its end")
        elif self.first_token is None:
            self._fail("empty", "the answer has no text, reasoning or tool call")

    def _fail(self, kind: str, text: str) -> None:
        if self.error is None:
            self.error, self.error_text = kind, text[:MAX_ERROR_CHARS]


def _tokens_of(part: Mapping[str, Any]) -> tuple[str, bool, bool]:
    """Text of the answer; whether there is a tool call or refusal; whether there is reasoning.

    An empty string is no token: it comes with the role, the finish reason, or a tokenizer that
    waits for the rest of a character.
    """
    text = part.get("content") or part.get("text")
    has_other = _has_tool_call(part.get("tool_calls")) or bool(part.get("refusal"))
    has_reasoning = any(part.get(name) for name in _REASONING)
    return text if isinstance(text, str) else "", has_other, has_reasoning


def _has_tool_call(calls: Any) -> bool:
    if not isinstance(calls, list):
        return False
    functions = [call.get("function") for call in calls if isinstance(call, dict)]
    return any(
        isinstance(function, dict) and (function.get("name") or function.get("arguments"))
        for function in functions
    )


def _kind_of(status: int) -> str:
    return _ERROR_KINDS.get(status, f"http_{status // 100}xx")


def _error_text(body: bytes) -> str:
    try:
        parsed = json.loads(body)
    except ValueError:
        return _shown(body)
    return _message_of(parsed) if isinstance(parsed, dict) else _shown(body)


def _message_of(body: Mapping[str, Any]) -> str:
    """OpenAI puts an object under `error`; others a string there, or under `message`, `detail`."""
    error = body.get("error") or body.get("message") or body.get("detail") or body
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else _shown(json.dumps(error).encode())


def _shown(data: bytes) -> str:
    return " ".join(data[:MAX_ERROR_CHARS].decode("utf-8", "replace").split())


def _count(value: Any, otherwise: int | None) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if is_count else otherwise
