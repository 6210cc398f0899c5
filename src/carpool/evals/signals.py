"""What can be seen of a single answer, and by its growing number betrays a broken upgrade."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import regex

from carpool.evals.eval_run import Result

_SPECIAL = regex.compile(
    r"<\|[\w-]{2,40}\|>|<｜[^｜\n]{2,40}｜>|</?s>|<(?:end|start)_of_turn>|\[/?INST\]|<eos>|<bos>"
)
_TOOL_MARKUP = regex.compile(
    r"</?tool_calls?>|\[TOOL_CALLS\]|<function=|<\|python_tag\|>|<\|tool_call\|>"
)
_THOUGHT = regex.compile(r"</?think>")


class FindingKind(StrEnum):
    TEMPLATE_CHANGED = "template_changed"
    TEMPLATE_UNSEEN = "template_unseen"
    STOP_LOST = "stop_lost"
    TOOL_PARSER_BROKEN = "tool_parser_broken"
    THOUGHTS_LEAKED = "thoughts_leaked"
    ERRORS = "errors"
    WORSE = "worse"
    LENGTH_CHANGED = "length_changed"
    NOT_ALIKE = "not_alike"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Signal:
    """`is_seen` tells whether an answer has it; None: it says nothing either way. `sentence` is
    what it means when there are more than before."""

    kind: FindingKind
    is_seen: Callable[[Result], bool | None]
    sentence: str


def has_failed(result: Result) -> bool:
    return not result.has_passed


def _has_no_answer(result: Result) -> bool:
    return result.answer is None


def _ended_by_length(result: Result) -> bool | None:
    return None if result.answer is None else result.answer.finish_reason == "length"


def _shows_special_tokens(result: Result) -> bool | None:
    return None if result.answer is None else _SPECIAL.search(result.answer.text) is not None


def _calls_no_tool(result: Result) -> bool | None:
    if result.answer is None or not result.has_tools:
        return None
    return not result.answer.tool_calls


def _shows_tool_markup(result: Result) -> bool | None:
    if result.answer is None or not result.has_tools:
        return None
    return _TOOL_MARKUP.search(result.answer.text) is not None


def _shows_thoughts(result: Result) -> bool | None:
    return None if result.answer is None else _THOUGHT.search(result.answer.text) is not None


SIGNALS = (
    Signal(FindingKind.ERRORS, _has_no_answer, "more requests get no answer"),
    Signal(
        FindingKind.STOP_LOST,
        _ended_by_length,
        "more answers run on until they are cut: a stop token is lost",
    ),
    Signal(
        FindingKind.STOP_LOST,
        _shows_special_tokens,
        "special tokens show in more answers: a stop token or the template is lost",
    ),
    Signal(
        FindingKind.TOOL_PARSER_BROKEN,
        _calls_no_tool,
        "fewer answers call a tool where they are given tools: the tool parser is broken",
    ),
    Signal(
        FindingKind.TOOL_PARSER_BROKEN,
        _shows_tool_markup,
        "calls of tools stand as text in more answers: the tool parser is broken",
    ),
    Signal(
        FindingKind.THOUGHTS_LEAKED,
        _shows_thoughts,
        "the model's thoughts stand in more answers: the reasoning parser is broken",
    ),
)
