"""From what an eval set says to a check: a mapping with the check's name, and its options."""

import math
from collections.abc import Callable
from typing import Any

import regex

from carpool.backends.address import Address, BackendAddressError
from carpool.evals.check import Check
from carpool.evals.hook_check import Hook, HookFile
from carpool.evals.json_checks import JsonSchema, make_validator
from carpool.evals.judge_check import Judge
from carpool.evals.set_fields import FieldError, Fields, as_number, as_texts, shown
from carpool.evals.text_checks import (
    Contains,
    Exact,
    FinishReason,
    Number,
    Regex,
    Said,
    Tokens,
)
from carpool.evals.tool_checks import CallsNoTool, CallsTool

MAX_PATTERN_CHARS = 10_000


def read_check(value: Any, hooks: HookFile) -> Check:
    """Of `{"contains": "Paris", "ignore_case": true}` and the like; a name alone will do for a
    check that needs nothing. Raises FieldError."""
    fields = Fields({value: True} if isinstance(value, str) else value, "a check like contains: x")
    names = [name for name in fields.left if name in _READERS or name == "hook"]
    if len(names) != 1:
        known = ", ".join(sorted((*_READERS, "hook")))
        found = " and ".join(names) or ", ".join(fields.left) or "nothing"
        raise FieldError("", f"must name one check, not {found}; there are: {known}")
    if names[0] == "hook":
        check: Check = _hook(fields, hooks)
    else:
        check = _READERS[names[0]](fields)
    fields.end()
    return check


def _exact(fields: Fields) -> Check:
    return Exact(_texts(fields, "exact"), fields.flag("ignore_case"))


def _contains(fields: Fields) -> Check:
    return Contains(_texts(fields, "contains"), fields.flag("ignore_case"))


def _not_contains(fields: Fields) -> Check:
    texts = _texts(fields, "not_contains")
    return Contains(texts, fields.flag("ignore_case"), is_absent=True)


def _regex(fields: Fields) -> Check:
    return Regex(_pattern(fields, "regex"))


def _not_regex(fields: Fields) -> Check:
    return Regex(_pattern(fields, "not_regex"), is_absent=True)


def _json(fields: Fields) -> Check:
    _only_true(fields, "json")
    return JsonSchema(None, "json")


def _json_schema(fields: Fields) -> Check:
    return JsonSchema(make_validator(fields.any("json_schema"), "json_schema"))


def _tool_call(fields: Fields) -> Check:
    value = fields.any("tool_call")
    if value is True:
        return CallsTool(None, {})
    try:
        inner = Fields({"name": value} if isinstance(value, str) else value, "the name of a tool")
        name, arguments = inner.optional_text("name"), inner.mapping("arguments")
        schema = inner.any("arguments_schema")
        validator = None if schema is None else make_validator(schema, "arguments_schema")
        inner.end()
    except FieldError as error:
        raise error.within("tool_call") from None
    return CallsTool(name, arguments, validator)


def _no_tool_call(fields: Fields) -> Check:
    _only_true(fields, "no_tool_call")
    return CallsNoTool()


def _number(fields: Fields) -> Check:
    value = fields.number("number")
    tolerance = fields.number("tolerance", 0.0)
    relative = fields.number("relative_tolerance", 0.0)
    for name, given in (("tolerance", tolerance), ("relative_tolerance", relative)):
        if given < 0 or math.isnan(given):
            raise FieldError(name, f"must be at least 0, not {given:g}")
    return Number(as_number("number", value), max(tolerance, relative * abs(value)))


def _finish_reason(fields: Fields) -> Check:
    return FinishReason(_texts(fields, "finish_reason"))


def _said(fields: Fields) -> Check:
    _only_true(fields, "said")
    return Said()


def _tokens(fields: Fields) -> Check:
    try:
        inner = Fields(fields.any("tokens"), "a mapping like completion_max: 20")
        tokens = Tokens(
            inner.count("prompt_min"),
            inner.count("prompt_max"),
            inner.count("completion_min"),
            inner.count("completion_max"),
        )
        inner.end()
    except FieldError as error:
        raise error.within("tokens") from None
    return tokens


def _judge(fields: Fields) -> Check:
    try:
        inner = Fields(fields.any("judge"), "a mapping with question and url")
        url = inner.text("url")
        try:
            Address.from_url(url)
        except BackendAddressError as error:
            raise FieldError("url", str(error)) from None
        made = Judge(
            inner.text("question"),
            url,
            inner.optional_text("model"),
            inner.optional_text("key_env"),
        )
        inner.end()
    except FieldError as error:
        raise error.within("judge") from None
    return made


def _hook(fields: Fields, hooks: HookFile) -> Check:
    name = fields.text("hook")
    return Hook(hooks.function(name), name)


def _texts(fields: Fields, name: str) -> tuple[str, ...]:
    texts = as_texts(name, fields.any(name))
    if not texts:
        raise FieldError(name, "must be a text or a list of them, not an empty list")
    return texts


def _pattern(fields: Fields, name: str) -> "regex.Pattern[str]":
    text = fields.text(name)
    if len(text) > MAX_PATTERN_CHARS:
        raise FieldError(name, f"is longer than {MAX_PATTERN_CHARS} characters")
    flags = regex.IGNORECASE if fields.flag("ignore_case") else 0
    try:
        return regex.compile(text, flags)
    except regex.error as error:
        raise FieldError(name, f"{shown(text)} is no pattern: {error}") from None


def _only_true(fields: Fields, name: str) -> None:
    if fields.any(name) is not True:
        raise FieldError(name, "takes true; leave the check out otherwise")


_READERS: dict[str, Callable[[Fields], Check]] = {
    "exact": _exact,
    "contains": _contains,
    "not_contains": _not_contains,
    "regex": _regex,
    "not_regex": _not_regex,
    "json": _json,
    "json_schema": _json_schema,
    "tool_call": _tool_call,
    "no_tool_call": _no_tool_call,
    "number": _number,
    "finish_reason": _finish_reason,
    "said": _said,
    "tokens": _tokens,
    "judge": _judge,
}
