"""What would fit where something does not: the nearest change, cheapest first."""

from collections.abc import Iterator
from dataclasses import replace

from carpool.errors import CarpoolError
from carpool.planning.choices import four_bit_format
from carpool.planning.engine_kind import EngineKind
from carpool.planning.plan import PlanRequest, make_plan

MOST_DEVICES = 16


def nearest_fit(request: PlanRequest) -> str | None:
    """Options that make the plan one that starts; None where none of those tried does."""
    for options, changed in _changes(request):
        try:
            plan = make_plan(changed)
        except CarpoolError:
            continue
        if plan.trouble is None:
            return options
    return None


def _changes(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    """A shorter sequence, fewer bits, more of the device, or both."""
    length = request.settings.max_model_len
    while length is not None and length > 2 * request.profile.context_tokens:
        length //= 2
        shorter = replace(request, settings=replace(request.settings, max_model_len=length))
        yield f"--max-model-len {length}", shorter
    name = four_bit_format(request.settings.engine)
    if name is not None:
        yield f"--weights {name}", replace(request, weight_format=name)
    if request.device.is_cpu or request.settings.engine is EngineKind.EMBEDDED:
        return
    ranks = request.settings.tensor_parallel * 2
    while ranks <= MOST_DEVICES:
        settings = replace(request.settings, tensor_parallel=ranks)
        count = settings.num_ranks
        more = replace(request, settings=settings, num_devices=count)
        yield f"--gpus {count}", more
        if name is not None:
            yield f"--gpus {count} --weights {name}", replace(more, weight_format=name)
        ranks *= 2
