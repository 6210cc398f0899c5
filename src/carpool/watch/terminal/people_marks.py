"""A letter and a colour for each person that is shown, so that either is enough."""

import string
from collections.abc import Iterable
from typing import NamedTuple

from rich.style import Style

_LETTERS = string.ascii_uppercase + string.ascii_lowercase
# Light backgrounds, apart for the colour-blind as well, under black letters.
_COLOURS = (75, 214, 78, 226, 176, 209, 117, 150, 222, 183, 43, 203)
OTHER = "*"


class Mark(NamedTuple):
    letter: str
    style: Style


class PeopleMarks:
    """Who has been seen keeps their mark. The letter is the first of the name that is free."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}

    def see(self, people: Iterable[tuple[str, str]]) -> None:
        """(id, name) of those who are to have a mark."""
        for person_id, name in people:
            if person_id not in self._marks:
                self._marks[person_id] = Mark(self._letter(name), self._style())

    def of(self, person_id: str) -> Mark:
        return self._marks.get(person_id) or Mark(OTHER, Style())

    def _letter(self, name: str) -> str:
        taken = {mark.letter for mark in self._marks.values()}
        own = [c for char in name for c in (char.upper(), char.lower()) if c in _LETTERS]
        free = (letter for letter in (*own, *_LETTERS) if letter not in taken)
        return next(free, OTHER)

    def _style(self) -> Style:
        number = _COLOURS[len(self._marks) % len(_COLOURS)]
        return Style(color="black", bgcolor=f"color({number})")
