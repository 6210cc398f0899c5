"""The inverse: which devices carry so many people, cheapest first."""

from dataclasses import dataclass, replace

from carpool.errors import CarpoolError
from carpool.hardware.device import Device, all_devices
from carpool.planning.engine_kind import EngineKind
from carpool.planning.plan import Plan, PlanRequest, make_plan

COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Candidate:
    """`usd` is the catalogue's price of all devices, None if it has none."""

    device: Device
    num_devices: int
    plan: Plan
    usd: float | None


def cheapest(request: PlanRequest, most: int = 8) -> list[Candidate]:
    """Devices on which at most 5 % of the people's requests wait; of each, the fewest. Those
    with a price come first, by price; `request` says everything but the device."""
    found = []
    for device in all_devices():
        if device.is_cpu or not runs_on(request.settings.engine, device):
            continue
        if candidate := _fewest(request, device):
            found.append(candidate)
    found.sort(key=lambda candidate: (candidate.usd is None, candidate.usd or 0.0))
    return found[:most]


def runs_on(engine: EngineKind, device: Device) -> bool:
    """Whether the engine's own installation guide names such a device."""
    if engine is EngineKind.LLAMA_CPP:
        return True
    if engine is EngineKind.EMBEDDED:
        return device.is_cpu
    if device.vendor == "NVIDIA":
        return float(device.compute_capability or 0) >= 7.5
    return device.vendor == "AMD" and device.kind == "datacenter"


def _fewest(request: PlanRequest, device: Device) -> Candidate | None:
    heads = request.model.shape.num_attention_heads
    for count in COUNTS:
        if heads % count or (device.kind == "unified" and count > 1):
            continue
        settings = replace(request.settings, tensor_parallel=count)
        try:
            plan = make_plan(replace(request, device=device, num_devices=count, settings=settings))
        except CarpoolError:
            return None
        if plan.trouble is None and plan.people is not None and plan.people.is_enough:
            usd = None if device.buy_usd is None else device.buy_usd * count
            return Candidate(device, count, plan, usd)
    return None
