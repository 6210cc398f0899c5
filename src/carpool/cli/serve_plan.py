"""The plan that `carpool serve` makes of an engine before it starts it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import typer

from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.gateway.model_config import ModelConfig
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


def announce_plans(models: Sequence["ModelConfig"], *, force: bool, is_quiet: bool) -> None:
    """Of every engine that is going to be started; see `announce_plan`."""
    for model in models:
        for backend in model.backends:
            if "://" not in backend.engine and backend.engine != "ollama":
                announce_plan(
                    backend.engine, backend.model or model.name, backend.args,
                    force=force, is_quiet=is_quiet,
                )  # fmt: skip


def announce_plan(
    engine: str, model: str, arguments: Sequence[str], *, force: bool, is_quiet: bool = False
) -> None:
    """Say in three lines on stderr (unless `is_quiet`) what is going to fit, if that can be
    said. Raises `PlanError` for a model that does not fit, unless `force`."""
    from carpool.planning.as_text import plan_in_three_lines
    from carpool.planning.errors import PlanError

    try:
        plan = plan_to_serve(engine, model, arguments)
    except CarpoolError as error:
        if not is_quiet:
            typer.echo(f"plan: none, {error}", err=True)
        return
    if plan.trouble and not force:
        raise PlanError(
            f"{model} does not fit: {plan.trouble}; see carpool plan for what would, or give "
            "--force to start it all the same"
        )
    if not is_quiet:
        typer.echo(plan_in_three_lines(plan), err=True)


def plan_to_serve(engine: str, model: str, arguments: Sequence[str]) -> "Plan":
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
    settings = Settings(engine=kind, **_settings_of(arguments, kind))  # type: ignore[arg-type]
    length = settings.max_model_len or source.shape.max_model_len
    return make_plan(
        PlanRequest(
            model=source,
            device=device,
            num_devices=count,
            settings=settings,
            profile=shortened("chat", length),
        )
    )


def _settings_of(arguments: Sequence[str], kind: object) -> dict[str, object]:
    """What the arguments say of memory; the rest of them is the engine's business."""
    from carpool.planning.engine_kind import EngineKind

    found: dict[str, object] = {}
    words = [word for argument in arguments for word in argument.split("=", 1)]
    for flag, value in pairwise(words):
        name = _FLAGS.get(flag)
        if name is not None and (number := _value(name, value)) is not None:
            found[name] = number
    if kind is EngineKind.LLAMA_CPP:
        # What Carpool starts llama-server with, see backends/llama_cpp.py.
        slots, length = found.setdefault("max_num_seqs", 8), found.get("max_model_len", 4096)
        found.setdefault("kv_tokens", int(str(slots)) * int(str(length)))
        found.setdefault("max_model_len", length)
    return found


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
