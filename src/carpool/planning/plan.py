"""A plan: what a model on devices holds, for whom, and how fast."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from carpool.hardware.device import Device
from carpool.models.model_source import ModelSource
from carpool.models.shape import ModelShape
from carpool.models.spec import IR_ARCHITECTURES
from carpool.models.weight_format import WeightFormat, find_format, weight_bytes
from carpool.planning.calibration import Calibration
from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError, require_positive
from carpool.planning.figure import GIB, Figure, Known
from carpool.planning.kv_dtype import check_kv_dtype, kv_element
from carpool.planning.kv_pool import KVPool, make_pool
from carpool.planning.memory import MemoryPlan, Weights, plan_memory
from carpool.planning.people import InFlight, in_flight, people_for, seats_for
from carpool.planning.profile import Profile
from carpool.planning.settings import Settings, filled
from carpool.planning.simple import SimplePlan, simple_plan
from carpool.planning.speculation import with_draft_layers, with_draft_weights
from carpool.planning.speed import Pace, Speed, speed_of
from carpool.planning.verdict import missing_devices, start_up_trouble
from carpool.scheduling.capacity import Capacity, Provenance

MOST_SLOTS = 64
"""Of llama-server, if nobody says."""

LEAST_MODEL_LEN = 2048
"""Shorter than this, people hit the limit in a chat."""

WAIT_SHARES = (0.01, 0.05)
"""Shares of requests that may have to wait for a seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What to plan. `weight_format` None is the format the model is stored in; `device_memory`
    replaces the catalogue's, in bytes; `num_people` None asks how many people there may be.
    What a `calibration` measured replaces what would be assumed. A `draft` model drafts the
    tokens of `settings.num_draft_tokens`."""

    model: ModelSource
    device: Device
    num_devices: int
    settings: Settings
    profile: Profile
    num_people: int | None = None
    weight_format: str | None = None
    device_memory: Figure | None = None
    calibration: Calibration | None = None
    draft: ModelSource | None = None

    def __post_init__(self) -> None:
        require_positive("people", self.num_people)
        require_positive("number of GPUs", self.num_devices)
        if missing := missing_devices(self.settings, self.num_devices):
            raise PlanError(f"{missing}; give --gpus {self.settings.num_ranks} or smaller numbers")


@dataclass(frozen=True, slots=True)
class PeoplePlan:
    """`num_people` as asked, or the most that 1 % of waits allow; `num_seats` of all replicas.
    `seats`: for each of `WAIT_SHARES`. `is_enough`: at most 5 % of requests wait for a seat."""

    num_people: int
    num_seats: int
    in_flight: InFlight
    seats: tuple[int, int]
    most_people: tuple[int, int]

    @property
    def is_enough(self) -> bool:
        return self.in_flight.wait_share <= WAIT_SHARES[1]


@dataclass(frozen=True, slots=True)
class Plan:
    """`trouble` says why the engine would not start; then there are no people and no speed.

    Sequences: at the profile's average context and at the full one, of one replica. `double` is
    the pace at twice the planned concurrency.
    """

    request: PlanRequest
    settings: Settings
    weights: Weights
    memory: MemoryPlan
    pool: KVPool
    simple: SimplePlan
    seqs_at_context: Figure
    seqs_at_full: Figure
    trouble: str | None
    speed: Speed | None = None
    people: PeoplePlan | None = None
    planned: Pace | None = None
    double: Pace | None = None

    @property
    def capacity(self) -> Capacity | None:
        """What travels on: sequences as asked, else as many as the cache holds at the average
        context. None if nothing would start."""
        if self.trouble or self.people is None:
            return None
        replicas = self.settings.data_parallel
        asked = self.request.settings.max_num_seqs
        return Capacity(
            max_num_seqs=asked * replicas if asked else max(1, self.people.num_seats),
            kv_tokens=max(1, self.pool.kv_tokens * replicas),
            max_model_len=self.settings.max_model_len or 1,
            provenance=Provenance.PREDICTED,
        )


def make_plan(request: PlanRequest) -> Plan:
    """Raises `PlanError` for what no plan can be made of; a model that does not fit is a plan
    with `trouble`."""
    _check_engine(request)
    _check_draft(request)
    shape = _shape(request)
    total = request.device_memory or device_memory(request.device)
    weights = weights_of(request.model, request.weight_format)
    loaded = _loaded(request, weights)
    settings = _with_policy(request, shape, loaded, total)
    _check_lengths(shape, settings, request.profile)
    measured = request.calibration
    memory = plan_memory(
        shape,
        loaded,
        settings,
        total,
        overhead_bytes=None if measured is None else measured.overhead_bytes,
    )
    pool = make_pool(shape, settings, memory.kv_cache.value)
    trouble = start_up_trouble(shape, settings, memory, pool)
    context, full = request.profile.context_tokens, settings.max_model_len or 1
    plan = Plan(
        request=request,
        settings=settings,
        weights=weights,
        memory=memory,
        pool=pool,
        simple=_simple(request, weights, settings, total),
        seqs_at_context=_less_spread(
            _seqs(shape, settings, memory, min(context, full)), request.profile
        ),
        seqs_at_full=_seqs(shape, settings, memory, full),
        trouble=trouble,
    )
    return plan if trouble else _with_people(plan)


def device_memory(device: Device) -> Figure:
    """Bytes that an engine may have of one device."""
    gib, how = device.usable_gib
    known = Known(how)
    return Figure.about(gib * GIB, 0.02 if known is Known.ASSUMED else 0.0, known)


def weights_of(model: ModelSource, format_name: str | None) -> Weights:
    """As stored, if nobody asks for another format; else estimated from counts."""
    shape = model.shape
    if format_name is None and model.stored is not None:
        main = next(iter(model.stored.by_type), "bf16")
        bits = 8 * model.stored.bytes.total / max(1, shape.parameters.total)
        format = replace(find_format("bf16"), name=main, bits=bits)
        return Weights(model.stored.bytes, format, Known.MEASURED)
    format = find_format(format_name or shape.quantization or shape.dtype)
    width = shape.experts.intermediate_size if shape.experts else None
    known = Known.ASSUMED if model.is_assumed else Known.PUBLISHED
    return Weights(weight_bytes(shape.parameters, format, shape.dtype, width), format, known)


def _check_engine(request: PlanRequest) -> None:
    shape = request.model.shape
    check_kv_dtype(request.settings.engine, request.settings.kv_dtype)
    if request.settings.engine is EngineKind.EMBEDDED and not runs_embedded(shape):
        raise PlanError(
            f"Carpool's own engine does not run {shape.model_type!r}; it runs "
            f"{', '.join(IR_ARCHITECTURES)}; plan with --engine llama.cpp"
        )


def runs_embedded(shape: ModelShape) -> bool:
    """Whether Carpool's own engine knows the architecture."""
    return shape.model_type in IR_ARCHITECTURES and shape.experts is None


def _check_draft(request: PlanRequest) -> None:
    model, num_tokens = request.model, request.settings.num_draft_tokens
    if request.draft is not None and not num_tokens:
        raise PlanError(
            f"{request.draft.name} drafts no tokens; say how many, like --draft-tokens 4"
        )
    if num_tokens and request.draft is None and not model.shape.num_draft_layers:
        raise PlanError(
            f"{model.name} has no layers that draft tokens; name a small model that does, "
            "like --draft qwen3-0.6b"
        )
    if request.draft is not None and request.settings.engine is EngineKind.EMBEDDED:
        raise PlanError("Carpool's own engine does not speculate; plan without --draft")


def _shape(request: PlanRequest) -> ModelShape:
    """Of the model, with what its draft model keeps."""
    if request.draft is None:
        return request.model.shape
    return with_draft_layers(request.model.shape, request.draft.shape)


def _loaded(request: PlanRequest, weights: Weights) -> Weights:
    """Of the model and its draft model."""
    draft = _draft_weights(request)
    return weights if draft is None else with_draft_weights(weights, draft)


def _draft_weights(request: PlanRequest) -> Weights | None:
    return None if request.draft is None else weights_of(request.draft, None)


def _check_lengths(shape: ModelShape, settings: Settings, profile: Profile) -> None:
    length = settings.max_model_len or 1
    if shape.max_model_len and length > shape.max_model_len:
        raise PlanError(
            f"max_model_len is {length:,}, but the model was made for {shape.max_model_len:,} "
            f"tokens; give --max-model-len {shape.max_model_len} or less"
        )
    if profile.context_tokens > length:
        is_most = length == shape.max_model_len
        longer = "a model with a longer context" if is_most else "a larger --max-model-len"
        raise PlanError(
            f"context is {profile.context_tokens:,} tokens, but max_model_len is {length:,}; "
            f"give --context {length} or less, or {longer}"
        )


def _with_policy(
    request: PlanRequest, shape: ModelShape, weights: Weights, total: Figure
) -> Settings:
    """Filled in, with two of the engine's defaults replaced by a policy.

    max_model_len: four average contexts, not all that the model can, and less where one such
    sequence does not fit. max_num_seqs: what the people need, as each takes memory for logits.
    """
    asked = request.settings
    if asked.engine is EngineKind.EMBEDDED and asked.kv_dtype == "auto":
        asked = replace(asked, kv_dtype="bf16" if request.device.has_bf16 else "f32")
    settings = filled(asked, total.value, request.device.name, shape.max_model_len)
    if asked.max_num_seqs is None:
        is_slots = asked.engine is EngineKind.LLAMA_CPP
        most = MOST_SLOTS if is_slots else settings.max_num_seqs or 1
        wanted = 16
        while wanted < min(2 * (request.num_people or 64), most):
            wanted *= 2
        settings = replace(settings, max_num_seqs=min(wanted, most))
    if asked.max_model_len is not None:
        return settings
    length = LEAST_MODEL_LEN
    while length < 4 * request.profile.context_tokens:
        length *= 2
    length = min(length, shape.max_model_len or length)
    while length > LEAST_MODEL_LEN and length // 2 >= request.profile.context_tokens:
        tried = replace(settings, max_model_len=length)
        memory = plan_memory(shape, weights, tried, total)
        pool = make_pool(shape, tried, memory.kv_cache.value)
        if start_up_trouble(shape, tried, memory, pool) is None:
            break
        length //= 2
    return replace(settings, max_model_len=length)


def _seqs(shape: ModelShape, settings: Settings, memory: MemoryPlan, num_tokens: int) -> Figure:
    def fit(num_bytes: float) -> int:
        return make_pool(shape, settings, num_bytes).num_seqs(num_tokens)

    kv = memory.kv_cache
    return Figure(fit(kv.value), fit(kv.low), fit(kv.high), kv.known)


SURE = 2.33
"""Standard deviations of a sum of many that 99 % stay below."""


def _less_spread(seqs: Figure, profile: Profile) -> Figure:
    """The low end where contexts differ: n of them hold n * mean + 2.33 * spread * sqrt(n) in
    99 of 100 cases."""
    if not profile.context_spread:
        return seqs
    room = seqs.low * profile.context_tokens
    spread = SURE * profile.context_spread
    root = (-spread + (spread**2 + 4 * profile.context_tokens * room) ** 0.5) / 2
    return replace(seqs, low=float(int((root / profile.context_tokens) ** 2)))


def _simple(
    request: PlanRequest, weights: Weights, settings: Settings, total: Figure
) -> SimplePlan:
    """On all devices together, all layers counted as if they kept every token."""
    shape = request.model.shape
    gib = request.device.nominal_gb or total.value / GIB
    element = kv_element(settings.kv_dtype, shape.dtype)
    per_token = sum(
        group.num_layers * group.cache.elements_per_token() * (element.key + element.value) / 2
        for group in shape.caches
        if hasattr(group.cache, "elements_per_token")
    )
    bits = _nominal_bits(weights.format)
    parameters = shape.parameters.total
    return simple_plan(gib * request.num_devices, parameters, bits, max(1.0, per_token))


def _nominal_bits(format: WeightFormat) -> float:
    """Without scales, as on a napkin."""
    return float(round(format.bits)) if format.bits > 3 else format.bits


def _with_people(plan: Plan) -> Plan:
    request, settings = plan.request, plan.settings
    profile = request.profile
    per_seq = plan.pool.demand.of_sequence(profile.context_tokens)
    speed = replace(
        speed_of(
            request.model.shape,
            plan.weights,
            settings,
            request.device,
            per_seq,
            _draft_weights(request),
        ),
        measured=request.calibration,
    )
    replicas = settings.data_parallel
    alone = service_of(speed, profile)

    def service(num_seqs: int) -> float:
        return alone(-(-num_seqs // replicas))

    # llama-server's slots have a fixed share of the context each, used or not.
    has_slots = settings.engine is EngineKind.LLAMA_CPP
    fit = max(1, int((plan.seqs_at_full if has_slots else plan.seqs_at_context).value))
    seats = min(fit, settings.max_num_seqs or fit) * replicas
    most = tuple(people_for(seats, profile.think_seconds, service, share) for share in WAIT_SHARES)
    num_people = request.num_people or max(1, most[0])
    wanted = [seats_for(num_people, profile.think_seconds, service, s) for s in WAIT_SHARES]
    people = PeoplePlan(
        num_people=num_people,
        num_seats=seats,
        in_flight=in_flight(num_people, profile.think_seconds, service, seats),
        seats=(wanted[0], wanted[1]),
        most_people=(most[0], most[1]),
    )
    planned = max(1, -(-people.in_flight.p99 // replicas))
    return replace(
        plan,
        speed=speed,
        people=people,
        planned=speed.pace(planned, profile.new_prompt_tokens),
        double=speed.pace(2 * planned, profile.new_prompt_tokens),
    )


def service_of(speed: Speed, profile: Profile) -> Callable[[int], float]:
    """Seconds of a request when so many are served."""
    prompt, output = profile.new_prompt_tokens, profile.output_tokens
    return lambda num_seqs: speed.service_seconds(num_seqs, prompt, output)
