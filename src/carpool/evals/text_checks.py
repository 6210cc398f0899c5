"""Checks of the answer's text, of numbers in it, and of how it ended."""

import asyncio
from dataclasses import dataclass

import regex

from carpool.evals.answer import Answer
from carpool.evals.check import CheckFailure, Question, quoted

REGEX_TIMEOUT_S = 1.0
_NUMBER = regex.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")


@dataclass(frozen=True, slots=True)
class Exact:
    """The text, without the white space around it, is one of `texts`."""

    texts: tuple[str, ...]
    ignores_case: bool = False
    name: str = "exact"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        fold = str.casefold if self.ignores_case else str
        found = fold(answer.text.strip())
        if any(found == fold(text.strip()) for text in self.texts):
            return None
        return f"{quoted(answer.text)} is not {_one_of(self.texts)}"


@dataclass(frozen=True, slots=True)
class Contains:
    """The text has all of `texts` in it; with `is_absent`, none of them."""

    texts: tuple[str, ...]
    ignores_case: bool = False
    is_absent: bool = False

    @property
    def name(self) -> str:
        return "not_contains" if self.is_absent else "contains"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        fold = str.casefold if self.ignores_case else str
        found = fold(answer.text)
        for text in self.texts:
            if (fold(text) in found) is self.is_absent:
                verb = "contains" if self.is_absent else "lacks"
                return f"{quoted(answer.text)} {verb} {quoted(text)}"
        return None


@dataclass(frozen=True, slots=True)
class Regex:
    """The pattern is found in the text (with `is_absent`: it is not), within REGEX_TIMEOUT_S:
    a pattern that backtracks without end is told, and holds nobody up."""

    pattern: "regex.Pattern[str]"
    is_absent: bool = False

    @property
    def name(self) -> str:
        return "not_regex" if self.is_absent else "regex"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        try:
            found = await asyncio.to_thread(
                self.pattern.search, answer.text, timeout=REGEX_TIMEOUT_S, concurrent=True
            )
        except TimeoutError:
            raise CheckFailure(
                f"the pattern {quoted(self.pattern.pattern)} took over {REGEX_TIMEOUT_S:g} s; "
                "make it simpler (nested repeats backtrack without end)"
            ) from None
        if (found is None) is self.is_absent:
            return None
        verb = "matches" if self.is_absent else "does not match"
        return f"{quoted(answer.text)} {verb} {quoted(self.pattern.pattern)}"


@dataclass(frozen=True, slots=True)
class Number:
    """The last number in the text is `value`, give or take `tolerance`."""

    value: float
    tolerance: float = 0.0
    name: str = "number"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        found = _NUMBER.findall(answer.text)
        if not found:
            return f"{quoted(answer.text)} has no number in it"
        number = float(found[-1].replace(",", ""))
        if abs(number - self.value) <= self.tolerance:
            return None
        margin = f" give or take {self.tolerance:g}" if self.tolerance else ""
        return f"its last number is {number:g}, not {self.value:g}{margin}"


@dataclass(frozen=True, slots=True)
class FinishReason:
    """The answer ended for one of `reasons`."""

    reasons: tuple[str, ...]
    name: str = "finish_reason"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        if answer.finish_reason in self.reasons:
            return None
        return f"it ended with {answer.finish_reason!r}, not {_one_of(self.reasons)}"


@dataclass(frozen=True, slots=True)
class Said:
    """The answer has text, reasoning or a tool call in it."""

    name: str = "said"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        is_empty = not (answer.text.strip() or answer.reasoning.strip() or answer.tool_calls)
        return "the answer is empty" if is_empty else None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Bounds on the token counts that the engine reports; None is no bound."""

    prompt_min: int | None = None
    prompt_max: int | None = None
    completion_min: int | None = None
    completion_max: int | None = None
    name: str = "tokens"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        sides = (
            ("prompt", answer.prompt_tokens, self.prompt_min, self.prompt_max),
            ("completion", answer.completion_tokens, self.completion_min, self.completion_max),
        )
        for side, count, least, most in sides:
            if least is None and most is None:
                continue
            if count is None:
                return f"the engine reports no {side} tokens"
            if least is not None and count < least:
                return f"{count} {side} tokens are fewer than {least}"
            if most is not None and count > most:
                return f"{count} {side} tokens are more than {most}"
        return None


def _one_of(texts: tuple[str, ...]) -> str:
    return " or ".join(quoted(text) for text in texts)
