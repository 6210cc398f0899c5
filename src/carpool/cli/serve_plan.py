"""The plan that `carpool serve` makes of an engine before it starts it."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import typer

from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.cli.calibrations import Measured
    from carpool.gateway.model_config import BackendConfig, ModelConfig
    from carpool.planning.calibration import Calibration
    from carpool.planning.plan import Plan

_FLAGS = {
    "--max-model-len": "max_model_len",
    "--context-length": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-running-requests": "max_num_seqs",
    "--parallel": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--gpu-memory-utilization": "memory_share",
    "--mem-fraction-static": "memory_share",
    "--kv-cache-dtype": "kv_dtype",
    "--tensor-parallel-size": "tensor_parallel",
    "--tp": "tensor_parallel",
    "--pipeline-parallel-size": "pipeline_parallel",
    "--ctx-size": "kv_tokens",
    "--kv-cache-memory": "kv_bytes",
}


class Planned(NamedTuple):
    """`models` with the sizes that were planned for their engines; `plans` by model's name."""

    models: "tuple[ModelConfig, ...]"
    plans: "Mapping[str, Plan]"


def announce_plans(
    models: Sequence["ModelConfig"],
    *,
    force: bool,
    is_quiet: bool,
    measured: "Measured | None" = None,
) -> Planned:
    """Plan for every engine that is going to be started, see `announce_plan`, and take over the
    seats that were `measured` and applied."""
    plans: dict[str, Plan] = {}
    planned = []
    for model in models:
        backends = []
        for backend in model.backends:
            plan = None
            calibration = None if measured is None else measured.of(backend, model.name)
            if "://" not in backend.engine and backend.engine != "ollama":
                plan = announce_plan(
                    backend.engine, backend.model or model.name, _arguments(backend),
                    force=force, is_quiet=is_quiet, calibration=calibration,
                )  # fmt: skip
            sized = backend if plan is None else with_planned_sizes(backend, plan)
            backends.append(_with_measured_seats(sized, model.name, calibration, is_quiet))
            if plan is not None:
                plans.setdefault(model.name, plan)
        planned.append(replace(model, backends=tuple(backends)))
    return Planned(tuple(planned), plans)


def _with_measured_seats(
    backend: "BackendConfig", model: str, calibration: "Calibration | None", is_quiet: bool
) -> "BackendConfig":
    """Says so in a line."""
    if calibration is None or not calibration.is_applied:
        return backend
    if not is_quiet:
        day = time.strftime("%Y-%m-%d", time.gmtime(calibration.measured_at))
        typer.echo(
            f"measured: {model} admits {calibration.max_num_seqs} requests at once, as carpool "
            f"verify found on {day} (p99 TTFT within {calibration.tolerance_s:g} s); "
            "--no-calibration ignores it",
            err=True,
        )
    return replace(backend, measured_num_seqs=calibration.max_num_seqs)


def _arguments(backend: "BackendConfig") -> tuple[str, ...]:
    """What the engine is going to be told of sizes; its own arguments come last, as they win."""
    sizes = {"--max-num-seqs": backend.max_num_seqs, "--max-model-len": backend.max_model_len}
    given = [(flag, str(value)) for flag, value in sizes.items() if value is not None]
    return tuple(word for pair in given for word in pair) + backend.args


def with_planned_sizes(backend: "BackendConfig", plan: "Plan") -> "BackendConfig":
    """The plan's Capacity, where the file of models says no other: the engine is started with
    it, so that it says the same, and admission holds to it."""
    capacity = plan.capacity
    if capacity is None:
        return backend
    named = {_FLAGS.get(word.partition("=")[0]) for word in backend.args}
    # What cannot be read here ("auto"), the engine makes something of.
    unread = named - settings_of(backend.args, plan.settings.engine).keys()

    def size(name: str) -> int | None:
        own: int | None = getattr(backend, name)
        return own if own is not None or name in unread else getattr(capacity, name)

    return replace(backend, max_num_seqs=size("max_num_seqs"), max_model_len=size("max_model_len"))


def announce_plan(
    engine: str,
    model: str,
    arguments: Sequence[str],
    *,
    force: bool,
    is_quiet: bool = False,
    calibration: "Calibration | None" = None,
) -> "Plan | None":
    """Say in three lines on stderr (unless `is_quiet`) what is going to fit, if that can be
    said. Raises `PlanError` for a model that does not fit, unless `force`."""
    from carpool.planning.as_text import plan_in_three_lines
    from carpool.planning.errors import PlanError

    try:
        plan = plan_to_serve(engine, model, arguments, calibration)
    except CarpoolError as error:
        if not is_quiet:
            typer.echo(f"plan: none, {error}", err=True)
        return None
    if plan.trouble and not force:
        raise PlanError(
            f"{model} does not fit: {plan.trouble}; {_way_out(plan)}, or give --force to start it "
            "all the same"
        )
    if not is_quiet:
        typer.echo(plan_in_three_lines(plan), err=True)
    return plan


def _way_out(plan: "Plan") -> str:
    from carpool.planning.nearest import nearest_fit

    nearest = nearest_fit(plan.request)
    return f"it would with {nearest}" if nearest else "see carpool plan for what would"


def plan_to_serve(
    engine: str,
    model: str,
    arguments: Sequence[str],
    calibration: "Calibration | None" = None,
) -> "Plan":
    """On this machine, with what the engine's arguments say. Raises `CarpoolError`."""
    from carpool.cli.plan import find_source
    from carpool.hardware.probe import probe, this_cpu
    from carpool.planning.engine_kind import EngineKind, parse_engine
    from carpool.planning.errors import PlanError
    from carpool.planning.plan import PlanRequest, make_plan
    from carpool.planning.profile import shortened
    from carpool.planning.settings import Settings

    kind = parse_engine(engine)
    device, count = (this_cpu(), 1) if kind is EngineKind.EMBEDDED else probe()
    if device.is_cpu and kind in (EngineKind.VLLM, EngineKind.SGLANG):
        raise PlanError(f"there is no GPU to plan {engine} for")
    source = find_source(model)
    settings = Settings(engine=kind, **settings_of(arguments, kind))  # type: ignore[arg-type]
    length = settings.max_model_len or source.shape.max_model_len
    return make_plan(
        PlanRequest(
            model=source,
            device=device,
            num_devices=count,
            settings=settings,
            profile=shortened("chat", length),
            calibration=calibration,
        )
    )


def settings_of(arguments: Sequence[str], kind: object) -> dict[str, object]:
    """What the arguments say of memory; the rest of them is the engine's business."""
    from carpool.planning.engine_kind import EngineKind

    found: dict[str, object] = {}
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for flag, value in pairwise(words):
        name = _FLAGS.get(flag)
        if name is not None and (number := _value(name, value)) is not None:
            found[name] = number
    if kind is EngineKind.LLAMA_CPP:
        _add_slots(found)
    return found


def _add_slots(found: dict[str, object]) -> None:
    """What Carpool starts llama-server with where nothing else is said; slots divide the cells."""
    from carpool.backends.llama_cpp import MAX_MODEL_LEN, MAX_NUM_SEQS

    slots = int(str(found.setdefault("max_num_seqs", MAX_NUM_SEQS)))
    length = int(str(found.get("max_model_len", MAX_MODEL_LEN)))
    cells = int(str(found.setdefault("kv_tokens", slots * length)))
    found["max_model_len"] = max(1, cells // slots)


def _value(name: str, text: str) -> object:
    """None for what is no number: the engine will say so."""
    from carpool.cli.size import parse_size

    if name == "kv_dtype":
        return text
    if name == "kv_bytes":
        return parse_size(text)
    try:
        return float(text) if name == "memory_share" else int(text)
    except ValueError:
        return None
