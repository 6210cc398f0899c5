"""Finds tool calls in a model's text as it streams.

The parser is an automaton over characters: what it gives out depends on the text so far and
never on how the text was cut into pieces.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from carpool.engine.json_scanner import JSON_WHITESPACE, Expect, JsonScanner

_ARGUMENT_KEYS = ("arguments", "parameters")


class ToolCallStyle(Enum):
    """How a model writes tool calls.

    HERMES (also Qwen): `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.
    LLAMA3: `{"name": ..., "parameters": {...}}` as the whole message or after
    `<|python_tag|>`, several separated by `;`. The tag is a special token: detokenise with
    `skip_special_tokens=False` to see it.
    """

    HERMES = "hermes"
    LLAMA3 = "llama3"

    @property
    def open_tag(self) -> str:
        return "<tool_call>" if self is ToolCallStyle.HERMES else "<|python_tag|>"

    @property
    def close_tag(self) -> str:
        return "</tool_call>" if self is ToolCallStyle.HERMES else ""


def tool_call_style(template: str | None) -> ToolCallStyle | None:
    """The style a chat template teaches, or None if it teaches none that is known."""
    if template is None:
        return None
    if "<tool_call>" in template and "<function=" not in template:
        return ToolCallStyle.HERMES
    if "<|python_tag|>" in template or ('"parameters": ' in template and "ipython" in template):
        return ToolCallStyle.LLAMA3
    return None


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call has begun; `index` counts the calls of one message from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArgumentsDelta:
    """More of the arguments of call `index`, as the model wrote them."""

    index: int
    text: str


ToolCallEvent = ContentDelta | ToolCallStart | ToolCallArgumentsDelta


class ToolCallParser:
    """Turns text deltas into content and tool calls.

    Arguments stream as raw JSON text once the name is known. Text that turns out not to be a
    call before that is content, tag and all. A call that goes wrong later keeps its text up to
    the closing tag as its arguments: it has been announced and cannot be taken back. White
    space around calls is dropped.

    `new_id` makes the ids of the calls ("call_" goes in front).
    """

    def __init__(self, style: ToolCallStyle, new_id: Callable[[], str]) -> None:
        self._style = style
        self._new_id = new_id
        self._num_calls = 0
        self._text = ""
        self._withheld = ""
        self._call: _Call | None = None
        self._is_at_boundary = True
        self._expects_close = False
        self._events: list[ToolCallEvent] = []

    def feed(self, text: str) -> list[ToolCallEvent]:
        self._text += text
        self._advance(is_last=False)
        return self._take_events()

    def finish(self) -> list[ToolCallEvent]:
        """What was held back, when no more text comes."""
        self._advance(is_last=True)
        if not (self._num_calls and self._withheld.isspace()):
            self._give_content(self._withheld)
        self._withheld = ""
        return self._take_events()

    def _advance(self, is_last: bool) -> None:
        is_moving = True
        while is_moving:
            if self._call is None:
                is_moving = self._read_content(is_last)
            elif self._call.is_broken:
                is_moving = self._read_broken_arguments(self._call, is_last)
            else:
                is_moving = self._read_call(self._call, is_last)

    def _read_content(self, is_last: bool) -> bool:
        """Pass content on up to the next tag; True if a call begins there."""
        tags = [self._style.open_tag]
        if self._expects_close and self._style.close_tag:
            tags.append(self._style.close_tag)
        position, tag = _find_first(self._text, tags)
        if not tag:
            position = len(self._text) - (0 if is_last else _num_possible(self._text, tags))
        start = self._pass_content(self._text[:position])
        if start is not None:
            self._begin_call("", self._text[start:])
            return True
        self._text = self._text[position + len(tag) :]
        if tag == self._style.open_tag:
            self._begin_call(tag, self._text)
        elif tag:
            self._expects_close = False
        return bool(tag)

    def _pass_content(self, text: str) -> int | None:
        """Emit `text`, white space at its end withheld; or where a bare call begins in it."""
        start = 0
        while self._is_at_boundary and start < len(text):
            character = text[start]
            if character == "{" and self._style is ToolCallStyle.LLAMA3:
                return start
            if character.isspace() or (character == ";" and self._separates_calls()):
                self._withheld += character
                start += 1
            else:
                self._is_at_boundary = False
        body = text[start:].rstrip()
        if body:
            self._give_content(self._withheld + body)
            self._withheld = ""
        self._withheld += text[start + len(body) :]
        return None

    def _separates_calls(self) -> bool:
        is_after_call = self._style is ToolCallStyle.LLAMA3 and self._num_calls > 0
        return is_after_call and ";" not in self._withheld

    def _begin_call(self, opening: str, text: str) -> None:
        self._call = _Call(opening, needs_arguments=self._style is ToolCallStyle.LLAMA3)
        self._text = text

    def _read_call(self, call: "_Call", is_last: bool) -> bool:
        num_read = call.read(self._text)
        self._text = self._text[num_read:]
        self._give_call(call)
        if call.is_done:
            self._end_call()
            return True
        if call.is_broken or is_last:
            return self._give_up(call)
        return False

    def _give_up(self, call: "_Call") -> bool:
        """The call is no JSON from here on, or the text ended inside it."""
        if call.index is None:
            self._take_back(call)
        elif call.has_whole_arguments:
            self._text = call.tail + self._text
            self._end_call()
        else:
            call.is_broken = True
        return True

    def _take_back(self, call: "_Call") -> None:
        """Make an unannounced call content again, and read on behind its opening."""
        text = call.opening + call.text
        num_given = len(call.opening) or 1
        self._call = None
        self._is_at_boundary = False
        self._give_content(self._withheld + text[:num_given])
        self._withheld = ""
        self._text = text[num_given:] + self._text

    def _read_broken_arguments(self, call: "_Call", is_last: bool) -> bool:
        tags = [self._style.close_tag] if self._style.close_tag else []
        position, tag = _find_first(self._text, tags)
        if not tag:
            position = len(self._text) - (0 if is_last else _num_possible(self._text, tags))
        self._give_arguments(call, self._text[:position])
        self._text = self._text[position:]
        if tag or is_last:
            self._end_call()
            return True
        return False

    def _end_call(self) -> None:
        self._call = None
        self._is_at_boundary = True
        self._expects_close = True

    def _give_call(self, call: "_Call") -> None:
        if call.index is None and call.is_announceable:
            call.index = self._num_calls
            self._num_calls += 1
            self._withheld = ""
            self._events.append(
                ToolCallStart(call.index, f"call_{self._new_id()}", call.name or "")
            )
        if call.index is not None:
            self._give_arguments(call, call.take_arguments())

    def _give_arguments(self, call: "_Call", text: str) -> None:
        if text and call.index is not None:
            self._events.append(ToolCallArgumentsDelta(call.index, text))

    def _give_content(self, text: str) -> None:
        if not text:
            return
        if self._events and isinstance(last := self._events[-1], ContentDelta):
            self._events[-1] = ContentDelta(last.text + text)
        else:
            self._events.append(ContentDelta(text))

    def _take_events(self) -> list[ToolCallEvent]:
        events, self._events = self._events, []
        return events


class _Call:
    """One call being read: a JSON object with a name and arguments, in either order."""

    def __init__(self, opening: str, needs_arguments: bool) -> None:
        self.opening = opening
        self.text = ""
        self.name: str | None = None
        self.index: int | None = None
        self.is_broken = False
        self.has_whole_arguments = False
        self._needs_arguments = needs_arguments
        self._scanner = JsonScanner()
        self._key = ""
        self._value_start: int | None = None
        self._arguments_start: int | None = None
        self._arguments_end = 0
        self._num_taken = 0

    @property
    def is_done(self) -> bool:
        return self._scanner.is_done and not self.is_broken

    @property
    def is_announceable(self) -> bool:
        return self.name is not None and (self._arguments_start is not None or self.is_done)

    @property
    def tail(self) -> str:
        """What has been read behind the arguments."""
        return self.text[self._arguments_end :]

    def read(self, text: str) -> int:
        """Read up to the end of the call or to where it breaks; how many characters that was."""
        start = len(self.text)
        self.text += text
        for position in range(start, len(self.text)):
            self.is_broken = not self._step(position)
            if self.is_broken or self.is_done:
                self.text = self.text[: position + self.is_done]
                break
        return len(self.text) - start

    def take_arguments(self) -> str:
        """Arguments not taken yet. A finished call without arguments has an empty object."""
        if self._arguments_start is None:
            return "{}" if self.is_done else ""
        start = self._arguments_start + self._num_taken
        end = self._arguments_end if self.has_whole_arguments else len(self.text)
        self._num_taken = end - self._arguments_start
        return self.text[start:end]

    def _step(self, position: int) -> bool:
        """Take the character at `position`; False if no call can have it there."""
        scanner, character = self._scanner, self.text[position]
        was_depth, was_expecting, was_in_key = scanner.depth, scanner.expect, scanner.is_in_key
        if not scanner.feed(character) or (was_depth == 0 and character == "["):
            return False
        if was_depth == 1 and was_expecting is Expect.VALUE and character not in JSON_WHITESPACE:
            return self._start_value(position)
        if was_depth == 1 and scanner.is_in_key and not was_in_key:
            self._value_start = position
        elif was_depth == 1 and scanner.expect is Expect.COLON and was_in_key:
            self._key = json.loads(self.text[self._value_start : position + 1])
        elif scanner.depth == 1 and scanner.expect is Expect.COMMA_OR_END:
            return self._end_value(position + 1)
        elif scanner.is_done:
            return self._is_complete()
        return True

    def _start_value(self, position: int) -> bool:
        self._value_start = position
        if self._key == "name" and self.name is None:
            return self.text[position] == '"'
        if self._key in _ARGUMENT_KEYS and self._arguments_start is None:
            if self.text[position] != "{":
                return False
            self._arguments_start = position
        return True

    def _end_value(self, end: int) -> bool:
        if self._value_start is None:
            return True
        if self._key == "name" and self.name is None:
            self.name = json.loads(self.text[self._value_start : end]) or None
            if self.name is None:
                return False
        elif self._value_start == self._arguments_start:
            self.has_whole_arguments, self._arguments_end = True, end
        self._value_start = None
        return True

    def _is_complete(self) -> bool:
        has_arguments = self.has_whole_arguments or not self._needs_arguments
        return self.name is not None and has_arguments


def _find_first(text: str, tags: list[str]) -> tuple[int, str]:
    """Position and text of the first of `tags` in `text`; the tag is "" if there is none."""
    found = [(position, tag) for tag in tags if (position := text.find(tag)) >= 0]
    return min(found, default=(len(text), ""))


def _num_possible(text: str, tags: list[str]) -> int:
    """Length of the longest end of `text` that may become one of `tags`."""
    longest = min(len(text), max((len(tag) for tag in tags), default=1) - 1)
    lengths = range(longest, 0, -1)
    return next((n for n in lengths if any(tag.startswith(text[-n:]) for tag in tags)), 0)
