"""Where the results of `carpool bench` go, and how far it is while it runs."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from carpool.bench.bench_run import BenchRun
    from carpool.bench.level import Level
    from carpool.bench.progress import Progress


@dataclass(frozen=True, slots=True)
class Outputs:
    """`json_file` "-": JSON goes to stdout, in place of the screen."""

    json_file: str | None
    csv_file: Path | None
    html_file: Path | None

    def check(self) -> None:
        """What would lose a result is better found before the measuring. Raises CarpoolError."""
        for path in self._paths():
            if path.is_dir() or not path.absolute().parent.is_dir():
                raise CarpoolError(f"{path}: cannot be written: no such folder, or it is one")

    def write(self, run: "BenchRun") -> None:
        from carpool.bench.as_html import as_html
        from carpool.bench.documents import as_csv, as_document

        if self.json_file == "-":
            typer.echo(json.dumps(as_document(run)))
        else:
            print_run(run)
            if self.json_file:
                _write(Path(self.json_file), json.dumps(as_document(run), indent=1) + "\n")
        if self.csv_file:
            _write(self.csv_file, as_csv(run))
        if self.html_file:
            _write(self.html_file, as_html(run))

    def _paths(self) -> Iterator[Path]:
        if self.json_file and self.json_file != "-":
            yield Path(self.json_file)
        yield from (path for path in (self.csv_file, self.html_file) if path)


def print_run(run: "BenchRun") -> None:
    from carpool.bench.as_text import level_lines, summary_lines

    for result in run.results:
        typer.echo("\n".join(level_lines(result)))
        typer.echo()
    if len(run.results) > 1:
        typer.echo("\n".join(summary_lines(run.results)))
    for note in run.notes:
        typer.echo(f"note: {note}")
    if run.trouble:
        typer.echo(f"carpool: {run.trouble}", err=True)
    if run.is_stopped and not run.results:
        typer.echo("carpool: stopped before a request was measured", err=True)


@contextmanager
def live_line() -> "Iterator[tuple[Callable[[Level], None], Callable[[Progress], None]]]":
    """One line on a terminal's stderr, written anew twice a second; elsewhere a line a level.

    Plain text on purpose: to draw more would take time from what is measured.
    """
    is_terminal = sys.stderr.isatty()

    def on_level(level: "Level") -> None:
        if not is_terminal:
            typer.echo(f"{level.name} ...", err=True)

    def on_progress(progress: "Progress") -> None:
        if is_terminal:
            sys.stderr.write(f"\r\x1b[K{progress_line(progress)}")
            sys.stderr.flush()

    try:
        yield on_level, on_progress
    finally:
        if is_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def progress_line(progress: "Progress") -> str:
    ttft = "-" if progress.ttft_ms is None else f"{progress.ttft_ms:,.0f} ms"
    phase = "warm-up, " if progress.is_warm_up else ""
    return (
        f"{progress.name}: {phase}{progress.elapsed_s:.0f} s, {progress.num_in_flight:,} in "
        f"flight, {progress.num_done:,} done, {progress.num_failed:,} failed, TTFT {ttft}, "
        f"{progress.chunks_per_s:,.0f} chunks/s"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CarpoolError(f"{path}: cannot be written: {error.strerror}") from None
    typer.echo(f"wrote {path}", err=True)
