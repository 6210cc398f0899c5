"""`carpool lab`: experiments that show on this machine what the engine does."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from carpool.lab.batching_lab import LabReport
    from carpool.lab.findings import Findings

app = typer.Typer(help="Experiments on the engine, on this machine.", no_args_is_help=True)


@app.callback()
def lab() -> None:
    """Experiments on the engine, on this machine."""


@app.command()
def batching(
    model: Annotated[
        str,
        typer.Option(help="What `carpool pull` takes: a catalogue name, a path or a hub id."),
    ] = "smollm2-135m",
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Where lab-batching.png and lab-batching.svg go."),
    ] = Path(),
    seed: Annotated[int, typer.Option(help="Of the made-up requests.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few requests only: a trial, not a measurement.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what continuous batching, paged KV memory and the prefix cache are worth.

    Takes two or three minutes with the default model on two cores.
    """
    from carpool.cli.progress import progress_bar
    from carpool.lab.batching_lab import FULL, QUICK, load_for_lab, run_lab
    from carpool.lab.plot import check_folder, import_matplotlib, save_plot

    # What would spoil the result is better found before the measuring than after.
    import_matplotlib()
    check_folder(out)
    with progress_bar() as report:
        loaded = load_for_lab(model, report)
    with run_progress() as progress:
        result = run_lab(loaded, model, QUICK if quick else FULL, seed, progress)
    paths = save_plot(result, out)
    if as_json:
        typer.echo(json.dumps(_as_dict(result, quick, paths)))
        return
    typer.echo(f"{result.model} on {result.machine}, seed {seed}\n")
    for findings in result.findings:
        _print(findings)
    if result.warning:
        typer.echo(result.warning)
    typer.echo(f"Plot: {' and '.join(map(str, paths))}")


@contextmanager
def run_progress() -> Iterator[Any]:
    """Give what draws one bar per run on stderr, or says its name where nobody watches."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )

    def begin(name: str) -> Any:
        task = bars.add_task(name, total=None)
        if not console.is_terminal:
            console.print(f"{name} ...", highlight=False)
        return lambda done, total: bars.update(task, completed=done, total=total)

    with bars:
        yield begin


def _as_dict(result: "LabReport", quick: bool, paths: list[Path]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model": result.model,
        "machine": result.machine,
        "seed": result.seed,
        "load_average": result.load_average,
        "warning": result.warning,
        "quick": quick,
        "files": [str(path) for path in paths],
    }
    for findings in result.findings:
        fields[findings.name] = {"runs": findings.figures, "sentence": findings.sentence}
    return fields


def _print(findings: "Findings") -> None:
    """A table and its sentence: drawn on a terminal, plain columns in a pipe."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    is_terminal = sys.stdout.isatty()
    console = Console(width=None if is_terminal else 120, highlight=False)
    console.print(findings.table.title, style="bold", soft_wrap=not is_terminal)
    table = Table(box=box.SIMPLE_HEAD if is_terminal else None)
    first, *others = findings.table.columns
    table.add_column(first)
    for column in others:
        table.add_column(column, justify="right")
    for row in findings.table.rows:
        table.add_row(*row)
    console.print(table)
    console.print(findings.sentence, soft_wrap=not is_terminal)
    console.print()
