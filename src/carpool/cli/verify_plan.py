"""The plan that `carpool verify` holds an engine against."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.hardware.device import Device
    from carpool.planning.calibration import Calibration
    from carpool.planning.plan import Plan
    from carpool.planning.profile import Profile

CPU_SCALE = 1 / 16
"""Of a profile's lengths on a machine without a GPU: with whole ones, a level that says
something takes longer than anybody waits."""
LEAST_OUTPUT = 16
"""Fewer tokens say nothing about the time between them."""


@dataclass(frozen=True, slots=True)
class Planned:
    """`plan` is None where none could be made; `why` says why then."""

    plan: "Plan | None"
    why: str = ""


def find_device(gpu: str | None, gpus: int, is_here: bool) -> "tuple[Device, int] | None":
    """None for an engine elsewhere of whose device nobody said anything."""
    from carpool.hardware.device import find_device as find
    from carpool.hardware.probe import probe

    if gpu is not None:
        return find(gpu), gpus
    return probe() if is_here else None


def scaled(profile: "Profile", scale: float, prompt: int | None, output: int | None) -> "Profile":
    """The profile with all lengths times `scale`, or the given ones. Its context is what such
    a request holds, as that is what the engine is going to see."""
    prompt = prompt or max(1, round(profile.prompt_tokens * scale))
    output = output or max(LEAST_OUTPUT, round(profile.output_tokens * scale))
    return replace(
        profile,
        prompt_tokens=prompt,
        output_tokens=output,
        context_tokens=prompt + output,
        context_spread=0.0,
        cached_share=0.0,
    )


def plan_for(
    engine: str,
    model: str,
    arguments: Sequence[str],
    profile: "Profile",
    device: "tuple[Device, int] | None",
    *,
    people: int | None,
    calibration: "Calibration | None",
    reported: "dict[str, object]",
) -> Planned:
    """`reported` are settings that the engine itself told (of one that was attached to)."""
    from carpool.cli.plan import find_source
    from carpool.cli.serve_plan import settings_of
    from carpool.planning.engine_kind import parse_engine
    from carpool.planning.plan import PlanRequest, make_plan
    from carpool.planning.settings import Settings

    if device is None:
        return Planned(None, "the device is not known; give --gpu")
    try:
        kind = parse_engine(engine)
        source = find_source(model)
        fields = reported or settings_of(arguments, kind)
        if "max_model_len" not in fields and source.shape.max_model_len:
            fields["max_model_len"] = source.shape.max_model_len
        plan = make_plan(
            PlanRequest(
                model=source,
                device=device[0],
                num_devices=device[1],
                settings=Settings(engine=kind, **fields),  # type: ignore[arg-type]
                profile=profile,
                num_people=people,
                calibration=calibration,
            )
        )
    except CarpoolError as error:
        return Planned(None, str(error))
    return Planned(plan) if plan.trouble is None else Planned(None, plan.trouble)
