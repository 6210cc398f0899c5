"""`carpool plan`: what fits, how many people, how fast, what it costs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.calibrations import CalibrationOption, device_label, find_calibration
from carpool.cli.database import DatabaseOption
from carpool.cli.moment import parse_since
from carpool.cli.plan_device import pick_device, usual_engine
from carpool.cli.plan_usage import find_people, hours_of_use, parse_tokens, read_usage_log

if TYPE_CHECKING:
    from carpool.hardware.device import Device
    from carpool.models.model_source import ModelSource
    from carpool.planning.figure import Known
    from carpool.planning.money import Money
    from carpool.planning.plan import PlanRequest

_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="A config.json, a model folder, a GGUF file, a catalogue name, a hub id."
        ),
    ] = "smollm2-135m",
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="A device of the catalogue, like 'RTX 4090'.")
    ] = None,
    gpus: Annotated[int, typer.Option(help="How many of them.")] = 1,
    this_machine: Annotated[
        bool, typer.Option("--this-machine", help="Plan for the devices of this machine.")
    ] = False,
    gpu_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of one device, like 24GiB.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(metavar="GB/S", help="Its bandwidth, in 1e9 bytes a second.")
    ] = None,
    tflops: Annotated[
        float | None, typer.Option(help="Its dense 16-bit FLOPS, in 1e12 a second.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(help="vllm, sglang, llama.cpp or embedded.", show_default="by the device"),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Its version.", show_default="newest")
    ] = None,
    people: Annotated[
        int | None, typer.Option(help="How many people are to be served.", show_default="most")
    ] = None,
    for_people: Annotated[
        int | None,
        typer.Option(metavar="N", help="The inverse: the cheapest devices for N people."),
    ] = None,
    context: Annotated[
        str | None,
        typer.Option(
            metavar="TOKENS",
            help="Of a sequence on average, like 4000 or 16k.",
            show_default="by the profile",
        ),
    ] = None,
    context_spread: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Standard deviation of the contexts: they fill a cache unevenly.",
            show_default="by the profile",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(help="chat, reasoning-chat, coding-agents or agent-fleet.")
    ] = "chat",
    usage: Annotated[
        Path | None,
        typer.Option(
            metavar="CSV",
            help="Your own in place of the profile: `carpool usage --csv`, or a line a request.",
        ),
    ] = None,
    from_ledger: Annotated[
        bool,
        typer.Option(
            "--from-ledger", help="What the gateway's ledger holds, in place of the profile."
        ),
    ] = False,
    since: Annotated[
        float | None,
        typer.Option(
            parser=parse_since,
            metavar="30d|DATE",
            help="Of the ledger, what started since then.",
            show_default="30 days ago",
        ),
    ] = None,
    think: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Between an answer and the next request."),
    ] = None,
    prompt: Annotated[int | None, typer.Option(metavar="TOKENS", help="Of a request.")] = None,
    output: Annotated[int | None, typer.Option(metavar="TOKENS", help="Of an answer.")] = None,
    max_model_len: Annotated[
        str | None,
        typer.Option(metavar="TOKENS", help="The longest sequence.", show_default="4 contexts"),
    ] = None,
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most sequences at once.", show_default="by the people")
    ] = None,
    memory_share: Annotated[
        float | None,
        typer.Option(help="Of the device's memory, for the engine.", show_default="the engine's"),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT", help="bf16, fp8, awq, Q4_K_M, ...", show_default="as stored"
        ),
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="auto, fp8, q8_0, u8, ...")] = "auto",
    tensor_parallel: Annotated[
        int | None, typer.Option(help="GPUs that share each layer.", show_default="--gpus")
    ] = None,
    pipeline_parallel: Annotated[int, typer.Option(help="Stages of layers.")] = 1,
    data_parallel: Annotated[
        int, typer.Option(help="Engines, each with GPUs of its own; others share the queue.")
    ] = 1,
    expert_parallel: Annotated[
        int | None,
        typer.Option(help="GPUs that share the experts.", show_default="--tensor-parallel"),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A small model that drafts tokens ahead.")
    ] = None,
    draft_tokens: Annotated[
        int, typer.Option(help="Tokens drafted ahead; models with such layers need no --draft.")
    ] = 0,
    host_offload: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Of each GPU's weights, what stays in the host's memory."
        ),
    ] = None,
    hours: Annotated[
        float | None,
        typer.Option(
            help="Hours a month in which it is used, for rent or buy.",
            show_default="as recorded, else 160",
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(help="USD for one device.")] = None,
    rent: Annotated[float | None, typer.Option(help="USD an hour for one device.")] = None,
    power_price: Annotated[float | None, typer.Option(help="USD for a kWh.")] = None,
    calibration: CalibrationOption = True,
    database: DatabaseOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the plan (.png, .svg or .pdf).")
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="List the catalogue of models, and stop.")
    ] = False,
    devices: Annotated[
        bool, typer.Option("--devices", help="List the catalogue of devices, and stop.")
    ] = False,
) -> None:
    """Say before you start what fits, how many people it serves, how fast, and what it costs.

    Every figure says how it is known: measured, driver, published, fitted or assumed.
    """
    from carpool.cli.size import parse_size
    from carpool.planning.engine_kind import EngineKind, parse_engine, read_version
    from carpool.planning.plan import PlanRequest
    from carpool.planning.settings import Settings

    if models or devices:
        _list(models)
        return
    log = read_usage_log(usage, from_ledger, since, database)
    people_do = find_people(profile, log, context, context_spread, think, prompt, output)
    source = find_source(model)
    device, count = pick_device(gpu, gpus, this_machine, gpu_memory, bandwidth, tflops)
    if engine:
        kind = parse_engine(engine)
    else:
        kind = EngineKind.VLLM if for_people is not None else usual_engine(device, source)
    length = None if max_model_len is None else parse_tokens("--max-model-len", max_model_len)
    settings = Settings(
        engine=kind,
        version=read_version(engine_version),
        max_model_len=length,
        max_num_seqs=max_num_seqs,
        memory_share=memory_share,
        kv_dtype=kv_cache_dtype,
        tensor_parallel=tensor_parallel
        or max(1, count // max(1, pipeline_parallel * data_parallel)),
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        expert_parallel=expert_parallel,
        num_draft_tokens=draft_tokens,
        host_offload=0.0 if host_offload is None else float(parse_size(host_offload)),
    )
    request = PlanRequest(
        model=source,
        device=device,
        num_devices=count,
        settings=settings,
        profile=people_do,
        num_people=for_people or people,
        weight_format=weights,
        draft=None if draft is None else find_source(draft),
    )
    if for_people is not None:
        _print_cheapest(request, as_json)
        return
    if calibration and weights is None and kv_cache_dtype == "auto":
        found = find_calibration(
            database, engine=kind.value, model=model, device=device_label(device, count)
        )
        request = replace(request, calibration=found)
    money = _money(device, count, *hours_of_use(hours, log), price, rent, power_price)
    _print_plan(request, money, as_json, markdown, plot)


def _print_plan(
    request: "PlanRequest", money: "Money | None", as_json: bool, markdown: bool, plot: Path | None
) -> None:
    from carpool.planning.as_dict import plan_as_dict
    from carpool.planning.as_markdown import plan_as_markdown
    from carpool.planning.as_text import plan_as_text
    from carpool.planning.choices import choices
    from carpool.planning.flags import commands
    from carpool.planning.nearest import nearest_fit
    from carpool.planning.plan import make_plan

    made = make_plan(request)
    rows, lines = choices(request), commands(made)
    nearest = nearest_fit(request) if made.trouble else None
    if plot is not None:
        from carpool.cli.plan_plot import save_plan_plot

        save_plan_plot(made, rows, money, plot)
    if as_json:
        typer.echo(json.dumps(plan_as_dict(made, rows, lines, money, nearest)))
    elif markdown:
        typer.echo(plan_as_markdown(made, rows, lines, money))
    else:
        typer.echo(plan_as_text(made, rows, lines[:1], money, nearest))
        if plot is not None:
            typer.echo(f"\nPlot: {plot}")


def _print_cheapest(request: "PlanRequest", as_json: bool) -> None:
    from carpool.cli.table import print_table
    from carpool.planning.as_text import whole
    from carpool.planning.cheapest import cheapest
    from carpool.planning.errors import PlanError

    found = cheapest(request)
    if not found:
        raise PlanError(
            f"no devices of the catalogue carry {request.num_people} people with "
            f"{request.profile.context_tokens:,} tokens of context; give fewer people, a shorter "
            "--context, --kv-cache-dtype fp8 or --weights awq"
        )
    if as_json:
        rows = [
            {"device": c.device.name, "count": c.num_devices, "usd": c.usd,
             "sequences": c.plan.seqs_at_context.value}
            for c in found
        ]  # fmt: skip
        typer.echo(json.dumps(rows))
        return
    typer.echo(
        f"{request.model.name} for {request.num_people} people "
        f"({request.profile.name}, {request.profile.context_tokens:,} tokens each):"
    )
    print_table(
        ("devices", "USD, without a host", "sequences at once"),
        [
            (
                f"{c.num_devices} x {c.device.name}",
                f"{c.usd:,.0f}" if c.usd else "?",
                whole(c.plan.seqs_at_context),
            )
            for c in found
        ],
        numbers=2,
    )


def find_source(name: str) -> "ModelSource":
    """What `name` stands for, the demo model and the cache included."""
    from carpool.engine.hub_config import fetch_config
    from carpool.models.catalogue import CATALOGUE
    from carpool.models.model_source import find_model, read_model

    if name in CATALOGUE:
        from carpool.engine.convert import converter_version
        from carpool.engine.resolve import default_cache

        folder = default_cache().converted(CATALOGUE[name].sha256, converter_version())
        if folder.is_dir():
            return read_model(folder)
        source, quantization = find_model(_MODEL, fetch_config), CATALOGUE[name].quantization
        shape = replace(source.shape, quantization=quantization)
        return replace(source, name=name, shape=shape)
    return find_model(name, fetch_config)


def _money(
    device: "Device",
    count: int,
    hours: float,
    hours_known: "Known | None",
    price: float | None,
    rent: float | None,
    power_price: float | None,
) -> "Money | None":
    from carpool.planning.money import money

    if device.is_cpu and price is None:
        return None
    return money(
        device,
        count,
        hours,
        buy_usd=price,
        rent_usd_per_hour=rent,
        usd_per_kwh=power_price,
        hours_known=hours_known,
    )


def _list(models: bool) -> None:
    if models:
        from carpool.models.published_models import find_published, published_names

        for name in sorted(published_names(), key=str.lower):
            if published := find_published(name):
                assumed = "assumed: " if published.is_assumed else ""
                typer.echo(f"{name}  ({assumed}{published.source})")
        return
    from carpool.hardware.device import all_devices

    for device in all_devices():
        size = "the machine's" if device.is_cpu else f"{device.usable_gib[0]:.1f} GiB"
        typer.echo(f"{device.name}: {size}, {device.bandwidth_gbs:,.0f} GB/s")
