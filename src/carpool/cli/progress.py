"""A progress bar on stderr, for people only: nothing is drawn unless stderr is a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from carpool.engine.report import Report


class SizeColumn(DownloadColumn):
    """Bytes done and in all; nothing for work that is not counted in bytes."""

    def render(self, task: Task) -> Text:
        return Text() if task.total in (None, 1) else super().render(task)


@contextmanager
def progress_bar() -> Iterator[Report]:
    """Give a `Report` that draws one bar per kind of work, and says each kind once in logs."""
    console = Console(stderr=True)
    tasks: dict[str, TaskID] = {}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        SizeColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    def report(what: str, done: int, total: int) -> None:
        if what not in tasks:
            finish_all()
            tasks[what] = bar.add_task(what, total=total or None)
            if not console.is_terminal:
                console.print(f"{what} ...", highlight=False)
        bar.update(tasks[what], completed=done)

    def finish_all() -> None:
        for task in bar.tasks:
            bar.update(task.id, total=task.total or 1, completed=task.total or 1)

    with bar:
        yield report
        finish_all()
