"""How long work tells the person who waits what it is doing."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""What is going on, how many bytes are done, of how many (0 when unknown)."""


def silent(what: str, done: int, total: int) -> None:
    """The `Report` that says nothing."""
