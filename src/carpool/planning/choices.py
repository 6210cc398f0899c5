"""What one decision buys: the same plan with one thing changed, in the order of cost."""

from dataclasses import dataclass, replace

from carpool.models.model_source import of_catalogue
from carpool.models.published_models import find_published
from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError
from carpool.planning.plan import Plan, PlanRequest, make_plan, weights_of

MOE_INSTEAD = "Qwen/Qwen3-30B-A3B"
"""What a mixture of experts would be like where the model is a dense one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`plan` is None where the choice is not open; `why` says why then."""

    name: str
    plan: Plan | None
    why: str = ""


def choices(request: PlanRequest) -> list[Choice]:
    """What is first costs least: shorter contexts, then 8 bits, then hardware."""
    profile, settings = request.profile, request.settings
    rows = [_choice("as planned", request)]
    for tokens in (4000, 16_000):
        if tokens != profile.context_tokens:
            other = replace(profile, context_tokens=tokens)
            rows.append(_choice(f"context {tokens // 1000}k", request, profile=other))
    if settings.kv_dtype in ("auto", "bf16", "f16", "fp16"):
        dtype = _eight_bit_kv(settings.engine)
        rows.append(_choice("8-bit KV cache", request, settings=replace(settings, kv_dtype=dtype)))
    name = four_bit_format(settings.engine)
    if name is not None and _bits(request) > 5:
        rows.append(_choice("4-bit weights", request, weight_format=name))
    if request.model.shape.experts is None and (moe := find_published(MOE_INSTEAD)):
        rows.append(_choice(f"{moe.id} (MoE)", request, model=of_catalogue(moe)))
    if not request.device.is_cpu and settings.engine is not EngineKind.EMBEDDED:
        rows += [_another_device(request), _another_engine(request)]
    return rows


def _another_device(request: PlanRequest) -> Choice:
    ranks = request.settings.tensor_parallel * 2
    name = f"{ranks} GPUs (tensor parallel {ranks})"
    if request.model.shape.num_attention_heads % ranks:
        heads = request.model.shape.num_attention_heads
        return Choice(name, None, f"{heads} attention heads do not divide by {ranks}")
    settings = replace(request.settings, tensor_parallel=ranks)
    num_devices = max(request.num_devices, ranks * settings.pipeline_parallel)
    return _choice(name, request, settings=settings, num_devices=num_devices)


def _another_engine(request: PlanRequest) -> Choice:
    """As many devices again, with an engine of their own: twice the seats, none the faster."""
    settings = request.settings
    replicas = 2 * settings.data_parallel
    num_devices = replicas * settings.tensor_parallel * settings.pipeline_parallel
    return _choice(
        f"{num_devices} GPUs ({replicas} engines)",
        request,
        settings=replace(settings, data_parallel=replicas),
        num_devices=max(request.num_devices, num_devices),
    )


def _choice(name: str, request: PlanRequest, **changes: object) -> Choice:
    if changes.keys() - {"profile"}:
        # What was measured holds for the engine as it is.
        changes["calibration"] = None
    try:
        return Choice(name, make_plan(replace(request, **changes)))  # type: ignore[arg-type]
    except PlanError as error:
        return Choice(name, None, str(error))


def four_bit_format(engine: EngineKind) -> str | None:
    """What people load there in four bits."""
    if engine is EngineKind.EMBEDDED:
        return None
    return "Q4_K_M" if engine is EngineKind.LLAMA_CPP else "awq"


def _eight_bit_kv(engine: EngineKind) -> str:
    return {EngineKind.LLAMA_CPP: "q8_0", EngineKind.EMBEDDED: "u8"}.get(engine, "fp8")


def _bits(request: PlanRequest) -> float:
    return weights_of(request.model, request.weight_format).format.bits
