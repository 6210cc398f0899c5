"""A progress bar on stderr, for people only: nothing is drawn unless stderr is a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from carpool.engine.report import Report


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Give a `Report` that draws one bar per kind of work, and says each kind once in logs."""
    console = Console(stderr=True)
    tasks: dict[str, object] = {}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            tasks[what] = bar.add_task(what, total=total or None)
            if not console.is_terminal:
                console.print(f"{what} ...", highlight=False)
        bar.update(tasks[what], completed=done)  # type: ignore[arg-type]

    with bar:
        yield report
