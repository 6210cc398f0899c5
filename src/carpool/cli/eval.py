"""`carpool eval`: hold an engine's answers against a set of cases, and two engines' against
each other."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.key_from import KeyEnvOption, key_from
from carpool.cli.table import print_table
from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.evals.compare import Comparison, Tally
    from carpool.evals.eval_run import EvalRun, RunWriter
    from carpool.evals.eval_set import EvalSet
    from carpool.evals.runner import RunOptions

EXIT_CODES = (
    "Exit codes: 0 all passed / no difference beyond chance, 3 checks failed / an alarm, "
    "2 something to mend (one line says what), 130 Ctrl-C, 1 a bug."
)
NOT_PASSED = 3
_BAR_COLUMNS = 4

app = typer.Typer(help="Eval sets: run, compare, record.", no_args_is_help=True)

SetArgument = Annotated[
    str, typer.Argument(metavar="SET", help="A YAML or JSONL file (docs/eval.md), or smoke.")
]
ModelOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model.", show_default="the only one")
]
RepeatsOption = Annotated[int, typer.Option(min=1, max=1000, help="How often each case is asked.")]
ConcurrencyOption = Annotated[int, typer.Option(min=1, max=512, help="Requests at once.")]
TemperatureOption = Annotated[
    float | None,
    typer.Option(min=0, max=2, help="Goes before the set's.", show_default="the set's"),
]
TimeoutOption = Annotated[float, typer.Option(min=0.1, help="Seconds for one answer.")]
AllowHooksOption = Annotated[
    bool, typer.Option("--allow-hooks", help="Run the Python file that the set names.")
]
AsJsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class EvalUsageError(CarpoolError):
    """Options that do not go together."""


@dataclass(frozen=True, slots=True)
class _Side:
    """An endpoint of a comparison."""

    url: str
    model: str | None
    key_env: str | None


@app.callback()
def eval_() -> None:
    """Eval sets: run, compare, record."""


@app.command(epilog=EXIT_CODES)
def run(
    eval_set: SetArgument,
    against: Annotated[str, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint.")],
    model: ModelOption = None,
    key_env: KeyEnvOption = None,
    repeats: RepeatsOption = 1,
    concurrency: ConcurrencyOption = 4,
    temperature: TemperatureOption = None,
    timeout: TimeoutOption = 300.0,
    allow_hooks: AllowHooksOption = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the answers go, as they come.",
            show_default="evals/ where Carpool keeps its data",
        ),
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Ask every case of SET and check the answers."""
    from carpool.evals.runner import RunOptions

    read = _read_set(eval_set, allow_hooks)
    options = RunOptions(repeats=repeats, concurrency=concurrency, temperature=temperature)
    with _writer(out, read.name) as writer:
        try:
            _run(read, _Side(against, model, key_env), options, timeout, writer)
        finally:
            if (found := writer.run()) is not None:
                _print_run(found, as_json)
                typer.echo(f"The answers are in {writer.path}", err=True)
    if not all(result.has_passed for result in writer.results):
        raise typer.Exit(NOT_PASSED)


@app.command(epilog=EXIT_CODES)
def compare(
    old: Annotated[str, typer.Argument(help="A stored run, or the URL of an endpoint.")],
    new: Annotated[str, typer.Argument(help="As OLD.")],
    eval_set: Annotated[
        str, typer.Option("--set", metavar="SET", help="What endpoints are asked.")
    ] = "smoke",
    old_model: ModelOption = None,
    new_model: ModelOption = None,
    old_key_env: KeyEnvOption = None,
    new_key_env: KeyEnvOption = None,
    repeats: RepeatsOption = 5,
    concurrency: ConcurrencyOption = 4,
    temperature: TemperatureOption = None,
    timeout: TimeoutOption = 300.0,
    alpha: Annotated[
        float,
        typer.Option(
            min=1e-6, max=0.5, help="How often two runs of one engine may raise an alarm."
        ),
    ] = 0.01,
    allow_hooks: AllowHooksOption = False,
    as_json: AsJsonOption = False,
) -> None:
    """Say whether NEW does what OLD did: case by case, and beyond chance."""
    from carpool.evals.as_json import comparison_as_dict
    from carpool.evals.compare import compare as compare_runs
    from carpool.evals.runner import RunOptions

    options = RunOptions(repeats=repeats, concurrency=concurrency, temperature=temperature)
    runs = []
    for text, model, key_env in ((old, old_model, old_key_env), (new, new_model, new_key_env)):
        if "://" in text:
            read = _read_set(eval_set, allow_hooks)
            runs.append(_run_and_keep(read, _Side(text, model, key_env), options, timeout))
        else:
            runs.append(_stored_run(text))
    comparison = compare_runs(runs[0], runs[1], alpha)
    if as_json:
        typer.echo(json.dumps(comparison_as_dict(comparison)))
    else:
        print_comparison(comparison)
    if comparison.is_alarming:
        raise typer.Exit(NOT_PASSED)


def print_comparison(comparison: "Comparison") -> None:
    from carpool.evals.as_text import COMPARE_COLUMNS, comparison_rows, comparison_sentences

    print_table(COMPARE_COLUMNS, comparison_rows(comparison.cases))
    typer.echo()
    for line in comparison_sentences(comparison):
        typer.echo(line)


def _read_set(text: str, allow_hooks: bool) -> "EvalSet":
    from carpool.evals.eval_set import read_eval_set, smoke_set

    if text == "smoke" and not Path(text).exists():
        return smoke_set()
    return read_eval_set(Path(text), allow_hooks=allow_hooks)


def _stored_run(text: str) -> "EvalRun":
    from carpool.evals.eval_run import read_run

    return read_run(Path(text))


@contextmanager
def _writer(path: Path | None, set_name: str) -> "Iterator[RunWriter]":
    import os

    from sqlalchemy import make_url

    from carpool.evals.eval_run import RunWriter, default_path
    from carpool.store.database import default_database_url

    if path is None:
        folder = Path(make_url(default_database_url(os.environ)).database or "").parent
        path = default_path(folder, set_name, time.time())
    with closing(RunWriter(path)) as writer:
        yield writer


def _run_and_keep(
    read: "EvalSet", side: _Side, options: "RunOptions", timeout_s: float
) -> "EvalRun":
    with _writer(None, read.name) as writer:
        try:
            _run(read, side, options, timeout_s, writer)
        finally:
            if writer.results:
                typer.echo(f"The answers of {side.url} are in {writer.path}", err=True)
        found = writer.run()
    if found is None:
        raise EvalUsageError(f"nothing was measured at {side.url}")
    return found


def _run(
    read: "EvalSet", side: _Side, options: "RunOptions", timeout_s: float, writer: "RunWriter"
) -> None:
    import asyncio

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from carpool.evals.endpoint import Endpoint
    from carpool.evals.runner import num_requests, run_evals

    console = Console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    endpoint = Endpoint(side.url, side.model, api_key=key_from(side.key_env), timeout_s=timeout_s)

    async def run_all() -> None:
        try:
            await run_evals(read, endpoint, options, writer, lambda result: progress.advance(task))
        finally:
            endpoint.close()

    with progress:
        task = progress.add_task(f"{read.name} at {endpoint}", total=num_requests(read, options))
        asyncio.run(run_all())


def _print_run(found: "EvalRun", as_json: bool) -> None:
    from carpool.evals.as_json import run_as_dict
    from carpool.evals.as_text import RUN_COLUMNS, run_rows, run_sentences
    from carpool.evals.compare import tally

    tallies: list[tuple[str, Tally]] = [
        (key, tally(results)) for key, results in found.by_case().items()
    ]
    if as_json:
        typer.echo(json.dumps(run_as_dict(found, tallies)))
        return
    print_table(RUN_COLUMNS, run_rows(tallies), _BAR_COLUMNS)
    typer.echo()
    for line in run_sentences(found):
        typer.echo(line)
    sys.stdout.flush()
