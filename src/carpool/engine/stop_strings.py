"""Finds stop strings in text that arrives in pieces."""

from collections.abc import Sequence


class StopStringMatcher:
    """Gives text out up to the first stop string, and never any part of one.

    Text that may still become a stop string is held back. The stop string that is complete
    first wins, the longest if several end together. One Knuth-Morris-Pratt automaton per
    stop string, so the cost per character does not depend on their length.

    Raises ValueError for an empty stop string, which would match everywhere.
    """

    def __init__(self, stop_strings: Sequence[str]) -> None:
        if "" in stop_strings:
            raise ValueError("stop: a stop string must have at least one character")
        self._patterns = [(stop, _failure_table(stop)) for stop in stop_strings]
        self._num_matched = [0] * len(self._patterns)
        self._held = ""
        self._matched: str | None = None

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._matched

    def feed(self, text: str) -> str:
        """Text that is safe to give out now. After a match: nothing."""
        if self._matched is not None or not self._patterns:
            return "" if self._patterns else text
        buffer = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            self._advance(character)
            if (stop := self._completed()) is not None:
                self._matched, self._held = stop, ""
                return buffer[: end - len(stop)]
        num_safe = len(buffer) - max(self._num_matched)
        self._held = buffer[num_safe:]
        return buffer[:num_safe]

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> None:
        for index, (stop, failure) in enumerate(self._patterns):
            length = self._num_matched[index]
            while length and stop[length] != character:
                length = failure[length - 1]
            self._num_matched[index] = length + (stop[length] == character)

    def _completed(self) -> str | None:
        stops = (
            stop
            for (stop, _), length in zip(self._patterns, self._num_matched, strict=True)
            if length == len(stop)
        )
        return max(stops, key=len, default=None)


def _failure_table(pattern: str) -> list[int]:
    """For each prefix of `pattern`, the length of its longest proper prefix that ends it."""
    table = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = table[length - 1]
        length += pattern[index] == pattern[length]
        table[index] = length
    return table
