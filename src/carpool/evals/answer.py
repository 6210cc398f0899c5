"""What an engine said to one chat request, whole or put together from a stream."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the JSON text as the engine sent it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Token counts are None where the engine reports none. Times are seconds from the request
    on; `first_s` until the first piece of text, reasoning or a tool call (None: there was
    none, or the answer came whole)."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_s: float | None = None
    total_s: float = 0.0


def whole_answer(body: Json, total_s: float) -> Answer:
    """Of the body of a chat completion. Raises ValueError for what is none."""
    choice = _first_choice(body)
    message = choice.get("message")
    if not isinstance(message, dict):
        raise ValueError("its first choice has no message")
    prompt_tokens, completion_tokens = _usage(body)
    return Answer(
        text=_text(message.get("content")),
        reasoning=_reasoning(message),
        tool_calls=tuple(
            ToolCall(_text(call.get("name")), _text(call.get("arguments")))
            for call in _functions(message)
        ),
        finish_reason=_reason(choice),
        prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens,
        total_s=total_s,
    )


class StreamedAnswer:
    """Puts an answer together from the chunks of a stream."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._finish_reason: str | None = None
        self._usage: tuple[int | None, int | None] = (None, None)
        self._first_s: float | None = None

    def add(self, chunk: Json, seconds: float) -> None:
        """A chunk that came after so many seconds. Raises ValueError for what is none."""
        usage = _usage(chunk)
        if usage != (None, None):
            self._usage = usage
        if not chunk.get("choices"):
            return
        choice = _first_choice(chunk)
        delta = choice.get("delta")
        if isinstance(delta, dict) and self._add_delta(delta) and self._first_s is None:
            self._first_s = seconds
        self._finish_reason = _reason(choice) or self._finish_reason

    def answer(self, total_s: float) -> Answer:
        return Answer(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(ToolCall(*self._calls[index]) for index in sorted(self._calls)),
            finish_reason=self._finish_reason,
            prompt_tokens=self._usage[0],
            completion_tokens=self._usage[1],
            first_s=self._first_s,
            total_s=total_s,
        )

    def _add_delta(self, delta: Json) -> bool:
        """Whether it says anything: the role alone does not."""
        text, reasoning = _text(delta.get("content")), _reasoning(delta)
        self._text.append(text)
        self._reasoning.append(reasoning)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else []:
            self._add_call(call)
        return bool(text or reasoning or calls)

    def _add_call(self, call: Json) -> None:
        """The name comes with the first piece of a call, its arguments in many."""
        index = call.get("index")
        parts = self._calls.setdefault(index if isinstance(index, int) else 0, ["", ""])
        function = call.get("function")
        if isinstance(function, dict):
            parts[0] = parts[0] or _text(function.get("name"))
            parts[1] += _text(function.get("arguments"))


def _first_choice(body: Json) -> Json:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError("it has no choices")
    return choices[0]


def _functions(message: Json) -> list[Json]:
    calls = message.get("tool_calls")
    found = [call.get("function") for call in calls if isinstance(call, dict)] if calls else []
    return [function for function in found if isinstance(function, dict)]


def _reasoning(message: Json) -> str:
    """Engines call it by one of two names."""
    return _text(message.get("reasoning_content") or message.get("reasoning"))


def _usage(body: Json) -> tuple[int | None, int | None]:
    usage = body.get("usage")
    if not isinstance(usage, dict):
        return None, None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _reason(choice: Json) -> str | None:
    reason = choice.get("finish_reason")
    return reason if isinstance(reason, str) else None
