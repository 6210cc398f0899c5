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

from carpool.cli.bench_options import KeyFileOption, read_key
from carpool.cli.database import DatabaseOption
from carpool.cli.table import print_table
from carpool.cli.usage import SinceOption
from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.evals.compare import Comparison, Tally
    from carpool.evals.endpoint import Endpoint
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
    key_file: Path | None


@app.callback()
def eval_() -> None:
    """Eval sets: run, compare, record."""


@app.command(epilog=EXIT_CODES)
def run(
    eval_set: SetArgument,
    against: Annotated[str, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint.")],
    model: ModelOption = None,
    api_key_file: KeyFileOption = None,
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

    read = read_set(eval_set, allow_hooks)
    options = RunOptions(repeats=repeats, concurrency=concurrency, temperature=temperature)
    with run_writer(out, read.name) as writer:
        try:
            _run(read, _Side(against, model, api_key_file), options, timeout, writer)
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
    old_api_key_file: KeyFileOption = None,
    new_api_key_file: KeyFileOption = None,
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
    sides = ((old, old_model, old_api_key_file), (new, new_model, new_api_key_file))
    for text, model, key_file in sides:
        if "://" in text:
            read = read_set(eval_set, allow_hooks)
            runs.append(_run_and_keep(read, _Side(text, model, key_file), options, timeout))
        else:
            runs.append(_stored_run(text))
    comparison = compare_runs(runs[0], runs[1], alpha)
    if as_json:
        typer.echo(json.dumps(comparison_as_dict(comparison)))
    else:
        print_comparison(comparison)
    if comparison.is_alarming:
        raise typer.Exit(NOT_PASSED)


@app.command(epilog=EXIT_CODES)
def record(
    out: Annotated[Path, typer.Argument(metavar="FILE", help="A new eval set, in YAML.")],
    key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY",
            help="A key's id, or the name of a person with one key; can be repeated.",
            show_default="all that are recorded",
        ),
    ] = None,
    model: ModelOption = None,
    since: SinceOption = None,
    request: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="A request's x-request-id; can be repeated.", show_default="all"
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most requests, the newest.")] = 100,
    consent: Annotated[
        bool,
        typer.Option("--consent", help="Those whose requests these are know of it and agree."),
    ] = False,
    database: DatabaseOption = None,
) -> None:
    """Make cases of requests that were recorded (carpool keys record)."""
    from carpool.cli.key_store import opened_store
    from carpool.evals.record import as_yaml, cases_of
    from carpool.store.recorded_requests import RecordedRequestStore

    if not consent:
        raise EvalUsageError(
            "an eval set with people's requests is read by others, and kept: pass --consent if "
            "those whose requests these are have agreed"
        )
    if out.exists():
        raise EvalUsageError(f"{out} is there already; give the name of a new file")
    with opened_store(database) as store:
        found = RecordedRequestStore(store.database).find(
            key_ids=None if key is None else [store.find_key(each).key_id for each in key],
            model=model,
            since=since,
            request_ids=request,
            limit=limit,
        )
    cases = cases_of(found)
    if not cases:
        raise EvalUsageError(
            "no such request was recorded; `carpool keys record KEY --consent` switches that on"
        )
    _write_new(out, as_yaml(out.stem, cases))
    typer.echo(f"{len(cases)} cases of {len(found)} requests are in {out}; their checks ask for "
               "what the requests did: add what an answer must be.")  # fmt: skip


def print_comparison(comparison: "Comparison") -> None:
    from carpool.evals.as_text import COMPARE_COLUMNS, comparison_rows, comparison_sentences

    print_table(COMPARE_COLUMNS, comparison_rows(comparison.cases))
    typer.echo()
    for line in comparison_sentences(comparison):
        typer.echo(line)


def _write_new(path: Path, text: str) -> None:
    """Readable for its owner alone: it holds people's questions."""
    import os

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise EvalUsageError(f"cannot write {path}: {error.strerror or error}") from None
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def read_set(text: str, allow_hooks: bool) -> "EvalSet":
    from carpool.evals.eval_set import read_eval_set, smoke_set

    if text == "smoke" and not Path(text).exists():
        return smoke_set()
    return read_eval_set(Path(text), allow_hooks=allow_hooks)


def _stored_run(text: str) -> "EvalRun":
    from carpool.evals.eval_run import read_run

    return read_run(Path(text))


@contextmanager
def run_writer(path: Path | None, set_name: str) -> "Iterator[RunWriter]":
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
    with run_writer(None, read.name) as writer:
        try:
            _run(read, side, options, timeout_s, writer)
        finally:
            if writer.results:
                typer.echo(f"The answers of {side.url} are in {writer.path}", err=True)
    return writer.found


def _run(
    read: "EvalSet", side: _Side, options: "RunOptions", timeout_s: float, writer: "RunWriter"
) -> None:
    import asyncio

    from carpool.evals.endpoint import Endpoint

    key = read_key(side.key_file)
    endpoint = Endpoint(side.url, side.model, api_key=key, timeout_s=timeout_s)

    async def run_all() -> None:
        with closing(endpoint):
            await ask_all(read, endpoint, options, writer, str(endpoint))

    asyncio.run(run_all())


async def ask_all(
    read: "EvalSet", endpoint: "Endpoint", options: "RunOptions", writer: "RunWriter", name: str
) -> None:
    """Run a set, with a bar on a terminal. Raises EndpointError, RunFileError."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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
    with progress:
        task = progress.add_task(f"{read.name}: {name}", total=num_requests(read, options))
        await run_evals(read, endpoint, options, writer, lambda result: progress.advance(task))


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
