"""`carpool bench`: a load on an OpenAI-compatible endpoint, and what it measured."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.bench.choices import Arrivals
from carpool.bench.target import Api
from carpool.cli.bench_options import (
    KeyFileOption,
    parse_counts,
    parse_lengths,
    parse_rates,
    read_key,
)
from carpool.cli.database import DatabaseOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from carpool.bench.bench_run import BenchRun
    from carpool.bench.choices import LoadChoice, PromptChoice
    from carpool.bench.level import Limits, Slo
    from carpool.bench.prompts import Shape

EXIT_CODES = (
    "Exit codes: 0 measured; 2 something to mend (one line says what); 3 measured, but not "
    "certified, or a stated limit missed, or ended by errors; 130 Ctrl-C (what was measured is "
    "printed)."
)

LOAD, PROMPTS, BOUNDS, LIMITS, RESULTS = "Load", "Prompts", "Bounds", "Limits", "Results"


def bench(
    url: Annotated[str, typer.Argument(help="http://HOST:PORT, https://HOST or unix:///PATH.")],
    model: Annotated[
        str | None, typer.Option(help="Its name there.", show_default="the only one there is")
    ] = None,
    api: Annotated[Api, typer.Option(help="Which API to ask.")] = Api.CHAT,
    api_key_file: KeyFileOption = None,
    metrics_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Whose /metrics to read.", show_default="URL"),
    ] = None,
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency",
            "-c",
            metavar="N,N,...",
            rich_help_panel=LOAD,
            help="So many requests in flight at any time; several values are several levels.",
            show_default="1",
        ),
    ] = "",
    people: Annotated[
        str,
        typer.Option(
            metavar="N,N,...",
            rich_help_panel=LOAD,
            help="So many people, who ask, read, think and ask again.",
        ),
    ] = "",
    think: Annotated[
        float, typer.Option(rich_help_panel=LOAD, help="Mean seconds a person thinks.")
    ] = 10.0,
    rate: Annotated[
        str,
        typer.Option(
            metavar="R,R,...",
            rich_help_panel=LOAD,
            help="So many new requests a second, whether or not earlier ones are answered.",
        ),
    ] = "",
    arrivals: Annotated[
        Arrivals, typer.Option(rich_help_panel=LOAD, help="How those of --rate come.")
    ] = Arrivals.POISSON,
    burstiness: Annotated[
        float,
        typer.Option(
            rich_help_panel=LOAD, help="Of gamma arrivals: 1 is Poisson, less is burstier."
        ),
    ] = 0.5,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=LOAD,
            help="A recorded load: Azure's CSV or Mooncake's JSON lines. With another load, "
            "only its lengths.",
        ),
    ] = None,
    speed: Annotated[
        float, typer.Option(rich_help_panel=LOAD, help="Replay the trace so many times as fast.")
    ] = 1.0,
    ramp: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=LOAD,
            help="Seconds over which streams or people begin.",
            show_default="0.1 a stream up to 5; the think time",
        ),
    ] = None,
    warm_up: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=LOAD,
            help="Seconds after the ramp that are not counted.",
            show_default="5, a fifth of --max-seconds if that is less; 0 of --rate and --trace",
        ),
    ] = None,
    input_tokens: Annotated[
        str,
        typer.Option(
            metavar="N[:SPREAD]",
            rich_help_panel=PROMPTS,
            help="Of random prompts; 512:0.5 has a standard deviation of half the mean.",
        ),
    ] = "512",
    output_tokens: Annotated[
        str,
        typer.Option(metavar="N[:SPREAD]", rich_help_panel=PROMPTS, help="Of their answers."),
    ] = "128",
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=PROMPTS,
            help="ShareGPT, messages or prompts: .json, .jsonl, .csv, or a prompt a line.",
        ),
    ] = None,
    ledger: Annotated[
        bool,
        typer.Option(
            "--ledger",
            rich_help_panel=PROMPTS,
            help="Random prompts as long as the team's own requests, from its ledger.",
        ),
    ] = False,
    system_tokens: Annotated[
        int, typer.Option(min=0, rich_help_panel=PROMPTS, help="Of a system prompt all share.")
    ] = 0,
    turns: Annotated[
        int, typer.Option(min=1, rich_help_panel=PROMPTS, help="Of a conversation.")
    ] = 1,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            rich_help_panel=PROMPTS,
            help="The same prompts in every level and run, so that prefix caches hit.",
        ),
    ] = False,
    ignore_eos: Annotated[
        bool | None,
        typer.Option(
            rich_help_panel=PROMPTS,
            help="Ask for answers of exactly the output tokens.",
            show_default="yes, but for --prompts",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(min=0, rich_help_panel=PROMPTS, show_default="the endpoint's"),
    ] = None,
    seed: Annotated[
        int, typer.Option(rich_help_panel=PROMPTS, help="Of lengths, arrivals and think times.")
    ] = 0,
    max_requests: Annotated[
        int | None, typer.Option(rich_help_panel=BOUNDS, help="Measured ones, a level.")
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            rich_help_panel=BOUNDS,
            help="Of sending, after the warm-up, a level.",
            show_default="60, if nothing else bounds it",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(rich_help_panel=BOUNDS, help="That all answers of a level may have at most."),
    ] = None,
    max_errors: Annotated[
        int, typer.Option(min=1, rich_help_panel=BOUNDS, help="Failed requests that end a level.")
    ] = 100,
    drain: Annotated[
        float,
        typer.Option(
            min=0,
            rich_help_panel=BOUNDS,
            help="Seconds that answers may take after the time is over; later ones failed.",
        ),
    ] = 60.0,
    timeout: Annotated[
        float, typer.Option(rich_help_panel=BOUNDS, help="Seconds a request may take.")
    ] = 600.0,
    ttft: Annotated[
        float | None,
        typer.Option(metavar="MS", rich_help_panel=LIMITS, help="Most time to a first token."),
    ] = None,
    tpot: Annotated[
        float | None,
        typer.Option(metavar="MS", rich_help_panel=LIMITS, help="Most time per output token."),
    ] = None,
    e2e: Annotated[
        float | None,
        typer.Option(metavar="MS", rich_help_panel=LIMITS, help="Most time to the answer's end."),
    ] = None,
    max_lag: Annotated[
        float,
        typer.Option(
            metavar="MS",
            rich_help_panel=LIMITS,
            help="Most lag of the load generator itself, at its 99th percentile.",
        ),
    ] = 5.0,
    goodput: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            rich_help_panel=LIMITS,
            help="Share of all requests that must be within the limits, else exit code 3.",
        ),
    ] = 0.99,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE|-", rich_help_panel=RESULTS, help="Write JSON."),
    ] = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", rich_help_panel=RESULTS, help="A line a request."),
    ] = None,
    html_file: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", rich_help_panel=RESULTS, help="A page with plots."),
    ] = None,
    database: DatabaseOption = None,
) -> None:
    """Put a load on an OpenAI-compatible endpoint and measure what its users would see."""
    from carpool.bench.choices import LoadChoice, PromptChoice
    from carpool.bench.level import Limits, Slo
    from carpool.cli.bench_results import Outputs

    outputs = Outputs(json_file, csv_file, html_file)
    outputs.check()
    load = LoadChoice(
        concurrency=parse_counts("--concurrency", concurrency),
        people=parse_counts("--people", people),
        think_s=think,
        rates=parse_rates("--rate", rate),
        arrivals=arrivals,
        burstiness=burstiness,
        trace=trace,
        speed=speed,
        ramp_s=ramp,
        warm_up_s=warm_up,
        drain_s=drain,
        timeout_s=timeout,
        max_lag_ms=max_lag,
        seed=seed,
    )
    asked = PromptChoice(
        lengths=(
            parse_lengths("--input-tokens", input_tokens),
            parse_lengths("--output-tokens", output_tokens),
        ),
        file=prompts,
        shapes=_ledger(database, model, seed) if ledger else (),
        system_tokens=system_tokens,
        num_turns=turns,
        is_shared=shared,
        ignores_eos=prompts is None if ignore_eos is None else ignore_eos,
        seed=seed,
    )
    limits = Limits(max_requests, max_seconds, max_tokens, max_errors)
    run = _measured(
        (url, model, read_key(api_key_file), api, metrics_url),
        load,
        asked,
        limits,
        Slo(ttft, tpot, e2e),
        temperature,
    )
    outputs.write(run)
    if (code := exit_code(run, goodput)) != 0:
        raise typer.Exit(code)


def _measured(
    endpoint: tuple[str, str | None, str | None, Api, str | None],
    load: "LoadChoice",
    asked: "PromptChoice",
    limits: "Limits",
    slo: "Slo",
    temperature: float | None,
) -> "BenchRun":
    from carpool.bench.bench_run import BenchRun, run_levels
    from carpool.bench.choices import levels_of, prompts_of, trace_of
    from carpool.bench.dialect import get_acquainted
    from carpool.bench.loop import run as run_in_loop
    from carpool.bench.prompts import TokenScale
    from carpool.bench.target import find_target
    from carpool.cli.bench_results import live_line

    # Files and options are read before anything is sent: their faults cost nobody anything.
    recorded = trace_of(load, limits)
    levels = levels_of(load, limits, slo, recorded)
    prompts_of(asked, TokenScale(), recorded)

    async def measure() -> BenchRun:
        url, model, key, api, metrics_url = endpoint
        target = await find_target(url, model=model, api_key=key, api=api, metrics_url=metrics_url)
        known = await get_acquainted(target)
        run = BenchRun(known.target, known.notes)
        prompts = prompts_of(asked, known.scale, recorded)
        with live_line() as (on_level, on_progress):
            await run_levels(
                run,
                levels,
                prompts,
                temperature=temperature,
                on_progress=on_progress,
                on_level=on_level,
            )
        return run

    return run_in_loop(measure())


def exit_code(run: "BenchRun", least_goodput: float) -> int:
    if run.is_stopped:
        return 130
    has_missed = any(
        not result.is_certified
        or result.ended_by == "max_errors"
        or (result.level.slo and result.goodput_share < least_goodput)
        for result in run.results
    )
    return 3 if has_missed or run.trouble else 0


def _ledger(database: str | None, model: str | None, seed: int) -> "Sequence[Shape]":
    from carpool.bench.ledger_shapes import ledger_shapes
    from carpool.store.database import open_database

    with closing(open_database(database)) as opened:
        return ledger_shapes(opened, model=model, seed=seed)
