"""An eval set: cases, each a chat request and what its answers are held against.

    name: team
    hooks: hooks.py                 # a file beside this one, run with --allow-hooks only
    defaults: {temperature: 0, max_tokens: 64}
    cases:
      - id: capital
        prompt: "What is the capital of France?"       # or messages: [...]
        checks:
          - contains: Paris
          - finish_reason: stop

As JSON lines: a case a line; a first line without messages may give name, hooks and defaults.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from carpool.errors import CarpoolError
from carpool.evals.check import Check, Question
from carpool.evals.hook_check import HookFile
from carpool.evals.read_check import read_check
from carpool.evals.set_document import SetDocument, SetFileError, read_document
from carpool.evals.set_fields import FieldError, Fields, shown

MAX_CASES = 100_000
MAX_REPEATS = 1000
MAX_PROMPT_CHARS = 16 * 1024 * 1024
_ROLES = ("system", "developer", "user", "assistant", "tool")
_OURS = ("model", "messages", "tools", "tool_choice", "stream", "stream_options", "n")
_SMOKE = Path(__file__).with_name("smoke.yaml")


class EvalSetError(CarpoolError):
    """The set cannot be used; the message names the file, the case and the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCase:
    """`sampling` are fields of the request (temperature, max_tokens, stop, response_format,
    ...), `streams` the ways in which it is asked: False whole, True as a stream. `repeats`
    None: as often as the run says."""

    case_id: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: Any = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    streams: tuple[bool, ...] = (False,)
    repeats: int | None = None
    tags: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def question(self) -> Question:
        return Question(self.case_id, self.messages)

    def body(self, is_stream: bool) -> dict[str, Any]:
        """The request, without the model."""
        body: dict[str, Any] = {"messages": list(self.messages), **self.sampling}
        if self.tools:
            body["tools"] = list(self.tools)
        if self.tool_choice is not None:
            body["tool_choice"] = self.tool_choice
        body["stream"] = is_stream
        if is_stream:
            body["stream_options"] = {"include_usage": True}
        return body


@dataclass(frozen=True, slots=True)
class EvalSet:
    """`sha256` is of the file: two runs are compared case by case if it is the same."""

    name: str
    path: Path
    sha256: str
    cases: tuple[EvalCase, ...]


def smoke_set() -> EvalSet:
    """The built-in one: what any engine must do with any chat model."""
    return read_eval_set(_SMOKE)


def read_eval_set(path: Path, *, allow_hooks: bool = False) -> EvalSet:
    """Raises EvalSetError."""
    try:
        document = read_document(path)
        name, hooks_file, defaults = _head(document, path)
    except SetFileError as error:
        raise EvalSetError(str(error)) from None
    except FieldError as error:
        raise EvalSetError(f"{path}: {error}") from None
    hooks = HookFile(path, hooks_file, allow_hooks)
    cases = tuple(_cases(document, path, defaults, hooks))
    return EvalSet(name, path, document.sha256, cases)


def _head(document: SetDocument, path: Path) -> tuple[str, str | None, dict[str, Any]]:
    fields = Fields(document.head, "a mapping with cases")
    name = fields.text("name", path.stem)
    hooks, defaults = fields.optional_text("hooks"), fields.mapping("defaults")
    fields.end()
    _check_sampling(defaults, "defaults")
    return name, hooks, defaults


def _cases(
    document: SetDocument, path: Path, defaults: Mapping[str, Any], hooks: HookFile
) -> Iterable[EvalCase]:
    if not document.cases:
        raise EvalSetError(f"{path} has no cases; give at least one")
    if len(document.cases) > MAX_CASES:
        raise EvalSetError(f"{path} has {len(document.cases)} cases, over {MAX_CASES}; split it")
    places: dict[str, str] = {}
    for place, value in document.cases:
        try:
            case = _case(value, defaults, hooks)
        except FieldError as error:
            called = value.get("id") if isinstance(value, dict) else None
            name = f" (id {called!r:.80})" if isinstance(called, str) else ""
            raise EvalSetError(f"{path}: {place}{name}: {_stripped(error)}") from None
        if case.case_id in places:
            first = places[case.case_id]
            raise EvalSetError(
                f"{path}: {place}: id: {case.case_id!r:.80} is also the id of {first}; "
                "each case needs its own"
            )
        places[case.case_id] = place
        yield case


def _case(value: Any, defaults: Mapping[str, Any], hooks: HookFile) -> EvalCase:
    fields = Fields(value, "a case: a mapping with id, messages and checks")
    case_id = fields.text("id")
    messages = _messages(fields)
    tools = _list_of_mappings(fields, "tools")
    tool_choice = fields.any("tool_choice")
    sampling = fields.mapping("sampling")
    _check_sampling(sampling, "sampling")
    streams = _streams(fields)
    repeats = fields.count("repeats")
    if repeats is not None and not 1 <= repeats <= MAX_REPEATS:
        raise FieldError("repeats", f"must be from 1 to {MAX_REPEATS}, not {repeats}")
    tags = fields.texts("tags")
    checks = _checks(fields, hooks)
    fields.end()
    return EvalCase(
        case_id=case_id,
        messages=messages,
        tools=tools,
        tool_choice=tool_choice,
        sampling={**defaults, **sampling},
        streams=streams,
        repeats=repeats,
        tags=tags,
        checks=checks,
    )


def _messages(fields: Fields) -> tuple[dict[str, Any], ...]:
    if "prompt" in fields:
        if "messages" in fields:
            raise FieldError("prompt", "and messages exclude each other; give one")
        return ({"role": "user", "content": _prompt(fields)},)
    messages = _list_of_mappings(fields, "messages")
    if not messages:
        raise FieldError("messages", "is missing; give messages, or a prompt")
    for index, message in enumerate(messages):
        if message.get("role") not in _ROLES:
            raise FieldError(
                f"messages[{index}].role",
                f"is {shown(message.get('role'))}, but must be one of {', '.join(_ROLES)}",
            )
        if "content" not in message and "tool_calls" not in message:
            raise FieldError(f"messages[{index}].content", "is missing")
    return messages


def _prompt(fields: Fields) -> str:
    """A text; or, for a long one, a mapping with what is repeated, and what stands around it."""
    if not isinstance(fields.left.get("prompt"), dict):
        return fields.text("prompt")
    try:
        parts = Fields(fields.any("prompt"), "a text")
        before, repeated, after = (
            parts.text("before", ""),
            parts.text("repeat"),
            parts.text("after"),
        )
        times = parts.count("times", 1) or 0
        parts.end()
    except FieldError as error:
        raise error.within("prompt") from None
    if not 1 <= times * len(repeated) <= MAX_PROMPT_CHARS:
        raise FieldError("prompt.times", f"must make 1 to {MAX_PROMPT_CHARS} characters")
    return f"{before}{repeated * times}{after}"


def _checks(fields: Fields, hooks: HookFile) -> tuple[Check, ...]:
    values = fields.any("checks", ())
    if not isinstance(values, list | tuple):
        raise FieldError("checks", f"must be a list, not {shown(values)}")
    checks = []
    for index, value in enumerate(values):
        try:
            checks.append(read_check(value, hooks))
        except FieldError as error:
            raise error.within(f"checks[{index}]") from None
    return tuple(checks)


def _streams(fields: Fields) -> tuple[bool, ...]:
    value = fields.any("stream", False)
    if value == "both":
        return (False, True)
    if not isinstance(value, bool):
        raise FieldError("stream", f"must be true, false or both, not {shown(value)}")
    return (value,)


def _list_of_mappings(fields: Fields, name: str) -> tuple[dict[str, Any], ...]:
    value = fields.any(name, ())
    if not isinstance(value, list | tuple) or not all(isinstance(each, dict) for each in value):
        raise FieldError(name, f"must be a list of mappings, not {shown(value)}")
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise FieldError(name, f"cannot be sent as JSON: {error}") from None
    return tuple(value)


def _check_sampling(sampling: Mapping[str, Any], field_name: str) -> None:
    for name in _OURS:
        if name in sampling:
            raise FieldError(f"{field_name}.{name}", "has a field of its own in a case")
    try:
        json.dumps(sampling)
    except (TypeError, ValueError) as error:
        raise FieldError(field_name, f"cannot be sent as JSON: {error}") from None


def _stripped(error: FieldError) -> str:
    return f"{error.field}: {error.reason}" if error.field else f"it {error.reason}"
