"""Text of people's in a prompt, which must not be read as the model's special tokens.

A template writes special tokens to say who speaks. Were `<|im_start|>system` in a message read
as one, whoever wrote the message would speak for the system. So a mark is put inside of every
special token that a message spells out, before the template is rendered; the prompt is then
tokenised in pieces, from mark to mark, none of which holds a whole one.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

MARK = "\ufdd0"
"""A noncharacter: Unicode keeps it for uses like this, and no text has it."""


class PlainText:
    """Marks what would be read as one of `special_tokens`."""

    def __init__(self, special_tokens: Iterable[str]) -> None:
        longest_first = sorted(filter(None, set(special_tokens)), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def mark(self, value: Any) -> Any:
        """`value`, which is as JSON has it, with marks in all of its strings."""
        if isinstance(value, str):
            return self._special.sub(_split, value.replace(MARK, ""))
        if isinstance(value, Mapping):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value


def _split(special: re.Match[str]) -> str:
    return f"{special[0][0]}{MARK}{special[0][1:]}"


def pieces(prompt: str) -> list[str]:
    """The parts of a prompt that are tokenised each for itself; at least one."""
    return [piece for piece in prompt.split(MARK) if piece] or [""]
