"""A plan as a screen of plain text."""

from collections.abc import Iterator, Sequence

from carpool.planning.choices import Choice
from carpool.planning.figure import GIB, Figure, Known
from carpool.planning.flags import ENGINE_ADVICE, Command
from carpool.planning.money import Money
from carpool.planning.plan import Plan
from carpool.planning.profile import Profile

BAR = 40


def plan_as_text(
    plan: Plan,
    choices: Sequence[Choice],
    commands: Sequence[Command],
    money: Money | None,
    nearest: str | None = None,
) -> str:
    """`nearest`: options with which it would fit, where it does not."""
    parts = [_head(plan), _memory(plan), _sequences(plan)]
    if plan.trouble:
        parts.insert(1, f"It would fit with {nearest}." if nearest else NOTHING_FITS)
    if plan.people:
        parts += [_people(plan), _speed(plan)]
    if choices:
        parts.append(_choices(choices))
    if commands:
        parts += [_commands(commands), _advice()]
    if money:
        parts.append(money_as_text(money, plan))
    return "\n\n".join(parts)


NOTHING_FITS = (
    "Neither a shorter context, nor four bits, nor 16 of these would do; see "
    "carpool plan MODEL --for-people N for devices that do."
)


def plan_in_three_lines(plan: Plan) -> str:
    """What `carpool serve` says before it starts."""
    capacity = plan.capacity
    if capacity is None or not plan.people:
        return f"plan: does not fit: {plan.trouble}"
    memory = plan.memory
    return (
        f"plan: weights {gib(memory.weights)}, KV cache {plan.pool.num_bytes / GIB:.1f} GiB "
        f"of {gib(memory.total)} {_kind(plan)}\n"
        f"plan: {plan.pool.kv_tokens:,} tokens of KV cache, room for "
        f"{whole(plan.seqs_at_context)} sequences of {plan.request.profile.context_tokens:,} "
        f"tokens\n"
        f"plan: {capacity.max_num_seqs} seats, for about {plan.people.most_people[0]} people "
        f"({plan.request.profile.name}); more on that: carpool plan"
    )


def _kind(plan: Plan) -> str:
    return "free memory" if plan.request.device.is_cpu else "device memory"


def _head(plan: Plan) -> str:
    request, shape = plan.request, plan.request.model.shape
    verdict = f"does not fit: {plan.trouble}" if plan.trouble else "fits"
    return (
        f"{request.model.name} on {request.num_devices} x {request.device.name}, "
        f"{plan.settings.engine}: {verdict}\n"
        f"{shape.attention_class}, {shape.parameters.total / 1e9:,.2f}B parameters"
        f"{_active(plan)}, weights {plan.weights.format.name} "
        f"({plan.weights.bytes.total / GIB:,.1f} GiB, {_weights_known(plan)})\n"
        f"shape: {request.model.source}"
    )


def _weights_known(plan: Plan) -> str:
    if plan.weights.known is Known.MEASURED:
        return plan.weights.known
    return "estimated from dimensions: give the folder for exact bytes"


def _active(plan: Plan) -> str:
    shape = plan.request.model.shape
    return f" ({shape.parameters.active / 1e9:,.1f}B active)" if shape.experts else ""


def _memory(plan: Plan) -> str:
    memory = plan.memory
    total = max(memory.total.value, 1.0)
    rows = [
        ("weights", memory.weights),
        ("KV cache", memory.kv_cache),
        ("activation", memory.activation),
        ("not PyTorch", memory.non_torch),
        ("CUDA graphs", memory.graphs),
    ]
    lines = [f"Memory of one device: {gib(memory.total)} ({memory.total.known})"]
    for name, figure in rows:
        filled = min(BAR, max(0, round(BAR * figure.value / total)))
        lines.append(f"  {name:12} {'#' * filled:{BAR}} {gib(figure):>20}  {figure.known}")
    return "\n".join(lines)


def _sequences(plan: Plan) -> str:
    context, full = plan.request.profile.context_tokens, plan.settings.max_model_len or 1
    per_token = plan.pool.bytes_per_token / 1024
    state = plan.pool.demand.state
    planned = "planned" if plan.settings.data_parallel == 1 else "planned, each engine"
    lines = [
        f"KV cache: {plan.pool.kv_tokens:,} tokens ({plan.memory.kv_cache.known}), "
        f"{per_token:,.1f} KiB each on one device"
        + (f", and {state / 2**20:,.1f} MiB of state a sequence" if state else "")
        + f" ({shape_known(plan)})",
        f"  {'sequences at once':22} {'of ' + format(context, ',') + ' tokens':>20} "
        f"{'of ' + format(full, ',') + ' (full)':>22}",
        f"  {planned:22} {whole(plan.seqs_at_context):>20} {whole(plan.seqs_at_full):>22}  "
        f"{plan.seqs_at_context.known}",
        f"  {'by the simple formula':22} {plan.simple.num_seqs(context):>20,} "
        f"{plan.simple.num_seqs(full):>22,}",
        f"  ({_difference(plan)})",
    ]
    return "\n".join(lines)


def shape_known(plan: Plan) -> Known:
    """How the dimensions of the model are known."""
    if plan.request.model.stored is not None:
        return Known.MEASURED
    return Known.ASSUMED if plan.request.model.is_assumed else Known.PUBLISHED


def _difference(plan: Plan) -> str:
    """Why the simple formula says something else."""
    memory, settings = plan.memory, plan.settings
    unused = memory.total.value - memory.budget.value
    reasons = [
        f"the simple formula: {plan.simple.weights_gib:.1f} GiB weights, 2.0 GiB overhead, "
        f"{plan.simple.kv_gib:.1f} GiB KV; planned: usable memory, not the box's"
    ]
    if unused > 0.1 * GIB:
        reasons.append(f"{unused / GIB:.1f} GiB left alone by a share of {settings.memory_share}")
    if plan.pool.hybrid is not None:
        reasons.append("layers that keep only a window or a state")
    return ", ".join(reasons)


def _people(plan: Plan) -> str:
    people, profile = plan.people, plan.request.profile
    if people is None:
        return ""
    flight = people.in_flight
    verdict = "enough" if people.is_enough else "not enough"
    return "\n".join(
        [
            f"People ({profile.name}: {profile.prompt_tokens:,} + {profile.output_tokens:,} tokens,"
            f" {profile.think_seconds:g} s between; {profile_known(profile)}, "
            "each with its source in --json)",
            f"  {people.num_people} people have {flight.mean:.1f} requests in flight on average, "
            f"{flight.p99} at the 99th percentile; {flight.wait_share:.1%} of them wait",
            f"  seats: {people.num_seats}, {verdict}; 1 % of waits needs {people.seats[0]}, "
            f"5 % needs {people.seats[1]}",
            f"  these seats would do for {_at_most(people.most_people[0])} people (1 % wait), "
            f"{_at_most(people.most_people[1])} (5 %)",
        ]
    )


def profile_known(profile: Profile) -> Known:
    """Presets are other people's figures: assumed of yours."""
    is_measured = any(source.startswith("measured") for _, source in profile.sources)
    return Known.MEASURED if is_measured else Known.ASSUMED


def _at_most(count: int) -> str:
    return "1,000 and more" if count >= 1000 else f"about {count}"


def _speed_known(plan: Plan) -> str:
    calibration = plan.request.calibration
    if calibration is None:
        return "Speed (from bandwidth and FLOPS; assumed ranges of what kernels reach)"
    return (
        f"Speed (measured by carpool verify: a step takes {1e3 * calibration.step_fixed_s:.2g} ms "
        f"+ {1e3 * calibration.step_per_seq_s:.2g} ms a sequence, a prompt "
        f"{calibration.prefill_tokens_per_s:,.0f} tokens/s; --no-calibration ignores it)"
    )


def _speed(plan: Plan) -> str:
    lines = [_speed_known(plan)]
    for name, pace in (("planned", plan.planned), ("double", plan.double)):
        if pace is not None:
            lines.append(
                f"  {name:8} {pace.num_seqs:4} at once: "
                f"{between(pace.tokens_per_second)} tokens/s each, "
                f"{between(pace.total_tokens_per_second)} together, first token after "
                f"{between(pace.first_token_seconds)} s"
            )
    if plan.speed:
        lines.append(
            f"  sweet spot: about {plan.speed.sweet_spot} at once; beyond it, all get slower"
        )
    return "\n".join(lines)


def _choices(choices: Sequence[Choice]) -> str:
    lines = [
        "What one decision buys, cheapest first",
        f"  {'':34} {'context':>8} {'sequences':>10} {'full':>6} {'people':>8} {'tokens/s':>10}",
    ]
    lines += [_choice_row(choice) for choice in choices]
    return "\n".join(lines)


def _choice_row(choice: Choice) -> str:
    plan = choice.plan
    if plan is None:
        return f"  {choice.name:34} not open: {choice.why}"
    if plan.trouble or plan.people is None or plan.planned is None:
        return f"  {choice.name:34} {'does not fit':>17}"
    return (
        f"  {choice.name:34} {plan.request.profile.context_tokens:8,} "
        f"{plan.seqs_at_context.value * plan.settings.data_parallel:10,.0f} "
        f"{plan.seqs_at_full.value * plan.settings.data_parallel:6,.0f} "
        f"{plan.people.most_people[0]:8,} {between(plan.planned.tokens_per_second):>10}"
    )


def _commands(commands: Sequence[Command]) -> str:
    return "\n\n".join(_command(command) for command in commands)


def _command(command: Command) -> str:
    lines = [f"{command.engine}:", *(f"  {line}" for line in command.text.split("\n"))]
    lines += [f"    {flag.text}: {flag.why}" for flag in command.flags]
    return "\n".join(lines)


def _advice() -> str:
    lines = ["Which engine for whom (--markdown has the commands for all of them)"]
    return "\n".join([*lines, *(f"  {who}: {what}" for who, what in ENGINE_ADVICE)])


def money_as_text(money: Money, plan: Plan) -> str:
    return "\n".join([f"Rent or buy (USD, prices of {money.as_of}; give your own)",
                      *_money_lines(money, plan)])  # fmt: skip


def _money_lines(money: Money, plan: Plan) -> Iterator[str]:
    if money.rent_per_hour:
        low, _, high = money.rent_per_hour
        yield (
            f"  rent {low:.2f} to {high:.2f} an hour, {money.hours_per_month:.0f} hours a month "
            f"({money.hours_known or 'as given'})"
        )
    else:
        yield "  no rent is known for this device; give --rent"
    if money.buy and money.power_per_hour:
        low, _, high = money.power_per_hour
        yield (
            f"  buy {money.buy:,.0f} with a host, power {low:.2f} to {high:.2f} an hour "
            "(host and power assumed)"
        )
    elif not money.buy:
        yield "  no price is known for this device; give --price"
    if money.break_even_hours and money.break_even_months:
        yield (
            f"  buying is cheaper after {_hours(money.break_even_hours)} hours of use, "
            f"{_hours(money.break_even_months)} months"
        )
    yield from _months_table(money)


MONTHS = (1, 6, 12, 24, 36)


def _months_table(money: Money) -> Iterator[str]:
    """What either has cost after so many months."""
    if not (money.rent_per_hour and money.buy and money.power_per_hour):
        return
    yield f"  {'months':>8} {'rent':>20} {'buy and power':>20}"
    for months in MONTHS:
        hours = months * money.hours_per_month
        rent = [rate * hours for rate in (money.rent_per_hour[0], money.rent_per_hour[2])]
        buy = [money.buy + rate * hours for rate in (money.power_per_hour[0],
                                                     money.power_per_hour[2])]  # fmt: skip
        cells = [f"{_two_digits(low)} to {_two_digits(high)}" for low, high in (rent, buy)]
        yield f"  {months:>8} {cells[0]:>20} {cells[1]:>20}"


def _hours(values: tuple[float, float, float]) -> str:
    low, _, high = values
    if low == float("inf"):
        return "no number of"
    if high == float("inf"):
        return f"{_two_digits(low)} (or never)"
    return f"{_two_digits(low)} to {_two_digits(high)}"


def gib(figure: Figure) -> str:
    """In GiB, as a range where it is one."""
    low, high = figure.low / GIB, figure.high / GIB
    if high - low < 0.1:
        return f"{figure.value / GIB:.1f} GiB"
    return f"{low:.1f} to {high:.1f} GiB"


def whole(figure: Figure) -> str:
    if figure.low == figure.high:
        return f"{figure.value:,.0f}"
    return f"{figure.value:,.0f} ({figure.low:,.0f} to {figure.high:,.0f})"


def between(figure: Figure) -> str:
    return f"{_two_digits(figure.low)} to {_two_digits(figure.high)}"


def _two_digits(value: float) -> str:
    """No false digits: two, whatever the size."""
    rounded = float(f"{value:.2g}")
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
