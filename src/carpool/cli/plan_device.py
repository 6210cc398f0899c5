"""What a plan is for: a device of the catalogue, this machine, or figures, and the engine there."""

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carpool.hardware.device import Device
    from carpool.models.model_source import ModelSource
    from carpool.planning.engine_kind import EngineKind


def pick_device(
    name: str | None,
    count: int,
    this_machine: bool,
    memory: str | None,
    bandwidth: float | None,
    tflops: float | None,
) -> "tuple[Device, int]":
    """The catalogue's, this machine's, or one made of the figures given."""
    from carpool.cli.size import parse_size
    from carpool.hardware.device import Device, find_device
    from carpool.hardware.probe import probe
    from carpool.planning.errors import PlanError, require_positive

    require_positive("--gpus", count)
    require_positive("--bandwidth", bandwidth)
    require_positive("--tflops", tflops)
    if name is not None:
        device = find_device(name)
    elif memory is not None and bandwidth is not None:
        device = Device(
            name=f"device with {memory}", vendor="NVIDIA", kind="custom", bandwidth_gbs=bandwidth
        )
        tflops = tflops or 100.0
    elif this_machine or memory is None:
        device, found = probe()
        count = found if this_machine else count
    else:
        raise PlanError("--gpu-memory needs --gpu or --bandwidth, like --bandwidth 900")
    changes: dict[str, float] = {}
    if memory is not None:
        changes["engine_gib"] = parse_size(memory) / 2**30
        require_positive("--gpu-memory", changes["engine_gib"])
    if bandwidth is not None:
        changes["bandwidth_gbs"] = bandwidth
    if tflops is not None:
        changes["fp16_tflops"] = tflops
    return replace(device, **changes), count  # type: ignore[arg-type]


def usual_engine(device: "Device", source: "ModelSource") -> "EngineKind":
    """The one that people run there."""
    from carpool.planning.cheapest import runs_on
    from carpool.planning.engine_kind import EngineKind
    from carpool.planning.plan import runs_embedded

    if device.is_cpu:
        return EngineKind.EMBEDDED if runs_embedded(source.shape) else EngineKind.LLAMA_CPP
    is_gguf = source.stored is not None and source.source.startswith("GGUF")
    is_custom = device.kind == "custom"
    if not is_gguf and (is_custom or runs_on(EngineKind.VLLM, device)):
        return EngineKind.VLLM
    return EngineKind.LLAMA_CPP
