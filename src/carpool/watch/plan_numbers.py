"""What the plan says of contexts, 8-bit keys and values, and one more GPU: numbers for remedies."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError
from carpool.planning.plan import Plan, PlanRequest, make_plan

_WIDE_KV = ("auto", "bf16", "f16", "fp16", "f32", "fp32")
_EIGHT_BIT_KV = {EngineKind.LLAMA_CPP: "q8_0", EngineKind.EMBEDDED: "u8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the plan took people to be like; None where it took nothing."""

    think_seconds: float | None = None
    context_tokens: float | None = None
    cached_share: float | None = None
    num_people: int | None = None
    max_num_seqs: int | None = None


NO_ASSUMPTIONS = Assumptions()


class PlanNumbers:
    """Of a plan, or (`of_capacity`) of what the engine says where there is none. Each number is
    sequences in flight at a context of so many tokens; None: nobody can say."""

    def __init__(
        self,
        sequences: Callable[[float], int],
        with_kv_8bit: Callable[[float], int | None] = lambda context: None,
        with_gpu: Callable[[float], int | None] = lambda context: None,
        assumptions: Assumptions = NO_ASSUMPTIONS,
    ) -> None:
        self.sequences = sequences
        self.with_kv_8bit = with_kv_8bit
        self.with_gpu = with_gpu
        self.assumptions = assumptions

    @classmethod
    def of_plan(cls, plan: Plan) -> "PlanNumbers":
        request = plan.request
        kv_8bit, gpu = _Variant(plan, _with_kv_8bit), _Variant(plan, _with_gpu)
        profile = request.profile
        return cls(
            lambda context: _fit(plan, context),
            kv_8bit.sequences,
            gpu.sequences,
            Assumptions(
                think_seconds=profile.think_seconds,
                context_tokens=profile.context_tokens,
                cached_share=profile.cached_share,
                num_people=plan.people.num_people if plan.people is not None else None,
                max_num_seqs=plan.people.num_seats if plan.people is not None else None,
            ),
        )

    @classmethod
    def of_capacity(cls, max_num_seqs: int, kv_tokens: int) -> "PlanNumbers":
        """By division alone; how wide its keys and values are, an engine does not say."""
        return cls(lambda context: _divided(max_num_seqs, kv_tokens, context))


@dataclass(slots=True)
class _Variant:
    """The plan with one thing changed, made when it is first asked for."""

    plan: Plan
    change: Callable[[PlanRequest], PlanRequest | None]
    made: list[Plan | None] = field(default_factory=list)

    def sequences(self, context: float) -> int | None:
        if not self.made:
            request = self.change(self.plan.request)
            try:
                self.made.append(None if request is None else make_plan(request))
            except PlanError:
                self.made.append(None)
        plan = self.made[0]
        return None if plan is None or plan.trouble else _fit(plan, context)


def _with_kv_8bit(request: PlanRequest) -> PlanRequest | None:
    settings = request.settings
    if settings.kv_dtype not in _WIDE_KV:
        return None
    dtype = _EIGHT_BIT_KV.get(settings.engine, "fp8")
    return replace(request, settings=replace(settings, kv_dtype=dtype))


def _with_gpu(request: PlanRequest) -> PlanRequest | None:
    settings = request.settings
    if request.device.is_cpu or settings.engine is EngineKind.EMBEDDED:
        return None
    ranks = settings.tensor_parallel * 2
    if request.model.shape.num_attention_heads % ranks:
        return None
    return replace(
        request,
        settings=replace(settings, tensor_parallel=ranks),
        num_devices=max(request.num_devices, ranks * settings.pipeline_parallel),
    )


def _fit(plan: Plan, context: float) -> int:
    most = plan.settings.max_num_seqs
    fit = plan.pool.num_seqs(max(1, round(context)))
    return fit if most is None else min(most, fit)


def _divided(max_num_seqs: int, kv_tokens: int, context: float) -> int:
    return max(0, min(max_num_seqs, int(kv_tokens / max(1.0, context))))
