"""`carpool verify`: a plan is a prediction; this tests it."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.bench_options import KeyFileOption, read_key
from carpool.cli.calibrations import CalibrationOption
from carpool.cli.database import DatabaseOption
from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.bench.plan_check import PlanCheck
    from carpool.cli.verify_run import Options
    from carpool.planning.profile import Profile

EXIT_CODES = (
    "Exit codes: 0 the plan holds, 3 it does not, or that is unresolved, 2 something to mend "
    "(one line says what), 130 Ctrl-C (what was measured is kept), 1 a bug."
)
NOT_HELD = 3
INTERRUPTED = 130


class VerifyUsageError(CarpoolError):
    """Options that do not go together."""


def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="URL|MODEL",
            help="An engine that runs, like http://127.0.0.1:8000 or vllm+http://...; or a model, "
            "for which one is started.",
        ),
    ] = "smollm2-135m",
    engine_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ENGINE_ARGS]", help="More arguments for the engine."),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="What to start: embedded, vllm, sglang, llama.cpp or ollama.")
    ] = "embedded",
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What an engine that runs calls the model."),
    ] = None,
    plan_for: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="What to plan with: a folder, config.json, GGUF file or catalogue name.",
            show_default="by the model's name",
        ),
    ] = None,
    api_key_file: KeyFileOption = None,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Its device.", show_default="this machine's"),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="How many of them.")] = 1,
    people: Annotated[
        int | None,
        typer.Option(min=1, help="How many people are planned for.", show_default="most"),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option(min=1, help="Requests at once to test.", show_default="the plan's"),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="chat, reasoning-chat, coding-agents or agent-fleet.")
    ] = "chat",
    usage: Annotated[
        Path | None,
        typer.Option(metavar="CSV", help="Your own in place of the profile, as for carpool plan."),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=10,
            help="Of the profile's lengths.",
            show_default="1; 1/16 without a GPU",
        ),
    ] = None,
    prompt: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="Of a prompt, on average.")
    ] = None,
    output: Annotated[
        int | None, typer.Option(min=2, metavar="TOKENS", help="Of an answer, on average.")
    ] = None,
    spread: Annotated[
        float, typer.Option(min=0, max=3, help="Standard deviation of lengths, as a share.")
    ] = 0.3,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="What people put up with until the first token, in 99 of 100 requests. The "
            "default is MLPerf Inference's limit for a chat with a 70B model.",
        ),
    ] = 2.0,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.999, help="How sure a verdict must be.")
    ] = 0.8,
    precision: Annotated[
        float, typer.Option(min=0.01, max=1, help="How near to find the capacity, as a share.")
    ] = 0.1,
    budget: Annotated[
        float, typer.Option(min=10, metavar="SECONDS", help="For all levels together.")
    ] = 300.0,
    max_concurrency: Annotated[
        int, typer.Option(min=1, max=100_000, help="The most requests at once.")
    ] = 1024,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Have `carpool serve` admit no more at once than was measured."
        ),
    ] = False,
    calibration: CalibrationOption = True,
    database: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one self-contained page.")
    ] = None,
) -> None:
    """Drive an engine at the planned concurrency, at double, and in search of where the p99 time
    to first token gets too long; say which predictions were off, and keep what was measured."""
    from carpool.bench.loop import run
    from carpool.cli.verify_run import Options, verify_engine

    options = Options(
        target=target, backend=backend, engine_args=tuple(engine_args or ()), model=model,
        plan_for=plan_for, key=read_key(api_key_file), gpu=gpu, gpus=gpus, people=people, at=at,
        profile=_profile(profile, usage), scale=scale, prompt=prompt, output=output,
        spread=spread, tolerance_s=tolerance, confidence=confidence, precision=precision,
        budget_s=budget, max_concurrency=max_concurrency, use_calibration=calibration,
        database=database,
    )  # fmt: skip
    _check(options, apply, html)
    check = run(verify_engine(options))
    if check is None:
        raise typer.Exit(INTERRUPTED)
    applied = _keep(check, apply, database)
    _show(check, as_json, html)
    if not as_json:
        typer.echo(f"\n{applied}")
    if check.verified.ended == "stopped":
        raise typer.Exit(INTERRUPTED)
    if not check.holds:
        raise typer.Exit(NOT_HELD)


def _check(options: "Options", is_to_apply: bool, html: Path | None) -> None:
    """Raises VerifyUsageError."""
    if options.is_attached and options.engine_args:
        raise VerifyUsageError("an engine that runs has its arguments; leave out those after --")
    if html is not None and not html.absolute().parent.is_dir():
        raise VerifyUsageError(f"--html {html}: there is no folder {html.absolute().parent}")
    if options.at is not None and options.at > options.max_concurrency:
        raise VerifyUsageError(
            f"--at is {options.at}, over --max-concurrency {options.max_concurrency}"
        )
    is_said = options.scale == 1 or (options.prompt is not None and options.output is not None)
    if is_to_apply and not is_said:
        raise VerifyUsageError(
            "--apply needs requests like those of your people: give --prompt and --output, or "
            "--scale 1 (with --usage for your own)"
        )


def _profile(name: str, usage: Path | None) -> "Profile":
    from carpool.planning.profile import find_profile
    from carpool.planning.usage_log import profile_from_usage

    profile = find_profile(name)
    return profile if usage is None else profile_from_usage(usage, profile)


def _keep(check: "PlanCheck", is_to_apply: bool, database: str | None) -> str:
    """Store what was measured, and say what becomes of it."""
    from carpool.store.calibration_store import CalibrationStore
    from carpool.store.database import open_database

    calibration = check.calibration
    if calibration is None:
        return "Too little was measured to be kept."
    may_apply = check.is_resolved and calibration.max_num_seqs > 0
    with closing(open_database(database)) as opened:
        CalibrationStore(opened).save(replace(calibration, is_applied=is_to_apply and may_apply))
    kept = "Kept: carpool plan and carpool serve plan with these step times from now on."
    if not is_to_apply:
        return f"{kept} With --apply, carpool serve admits no more at once than was measured."
    if not may_apply:
        return f"{kept} Not applied: the capacity is {calibration.outcome}."
    return f"{kept} Applied: carpool serve admits {calibration.max_num_seqs} at once."


def _show(check: "PlanCheck", as_json: bool, html: Path | None) -> None:
    from carpool.bench.verify_dict import verify_as_dict
    from carpool.bench.verify_html import verify_as_html
    from carpool.bench.verify_text import verify_as_text

    if html is not None:
        html.write_text(verify_as_html(check), encoding="utf-8")
    typer.echo(json.dumps(verify_as_dict(check)) if as_json else verify_as_text(check))
