"""How long work tells the person who waits what it is doing."""

from collections.abc import Callable

Report = Callable[[str, int, int], None]
"""What is going on, how many bytes are done, of how many (0 when unknown)."""


def silent(what: str, done: int, total: int) -> None:
    """The `Report` that says nothing."""


def waiting(report: Report, name: str) -> Callable[[], None]:
    """What to call before waiting for another process that makes the same thing."""
    return lambda: report(f"waiting for another process that prepares {name}", 0, 0)
