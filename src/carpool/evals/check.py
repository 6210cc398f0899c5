"""What an answer is held against."""

from dataclasses import dataclass
from typing import Any, Protocol

from carpool.errors import CarpoolError
from carpool.evals.answer import Answer


class CheckFailure(CarpoolError):
    """A check that could not be done: its hook raised, its judge gave no answer."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked, for checks that look at it."""

    case_id: str
    messages: tuple[dict[str, Any], ...]


class Check(Protocol):
    @property
    def name(self) -> str:
        """What it is called in an eval set, like "regex"."""
        ...

    async def fault(self, answer: Answer, question: Question) -> str | None:
        """Why the answer does not pass, in a line; None if it does. Raises CheckFailure."""
        ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` is None for a check that passed. `is_undone`: it could not be done, which counts
    as not passed."""

    check: str
    reason: str | None = None
    is_undone: bool = False

    @property
    def has_passed(self) -> bool:
        return self.reason is None


async def judge(check: Check, answer: Answer, question: Question) -> Verdict:
    try:
        return Verdict(check.name, await check.fault(answer, question))
    except CheckFailure as failure:
        return Verdict(check.name, str(failure), is_undone=True)


def quoted(text: str, most: int = 120) -> str:
    """The beginning of a text, in a line, for people who ask why."""
    line = " ".join(text.split())
    return f'"{line[:most]}..."' if len(line) > most else f'"{line}"'
