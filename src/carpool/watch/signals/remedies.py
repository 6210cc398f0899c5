"""The cheapest way out first: shorter contexts, then narrower keys and values, then hardware."""

from carpool.watch.model_view import ModelView
from carpool.watch.signal import Remedy
from carpool.watch.statistics import known

COMMON_TOKENS = 4000
"""A context to cap at where nothing is known of an earlier one."""


def for_capacity(view: ModelView, context: float, cap: float | None = None) -> tuple[Remedy, ...]:
    """For more sequences in flight than there are at `context` tokens a sequence; `cap` is what
    contexts were once, or were planned to be."""
    plan = view.plan
    if plan is None or context <= 0:
        return (Remedy("add_gpu", "Add a GPU or a second engine; there is no plan to say more."),)
    before = plan.sequences(context)
    if cap is None:
        cap = min(plan.assumptions.context_tokens or COMMON_TOKENS, context / 2)
    tries = (
        (
            "cap_context",
            f"Cap contexts at {tokens(cap)} tokens (carpool people limit NAME --max-prompt-tokens)",
            plan.sequences(cap) if cap < context else None,
        ),
        ("quantise_kv", "Keep keys and values in 8 bits", plan.with_kv_8bit(context)),
        ("add_gpu", "Add a GPU of the same kind", plan.with_gpu(context)),
    )
    found = tuple(
        Remedy(action, f"{sentence}: {sequences(after)} in place of {before}.", before, after)
        for action, sentence, after in tries
        if after is not None and after > before
    )
    return found or (
        Remedy("add_gpu", "Add a GPU, or a second engine: memory is not what is short.", before),
    )


def mean_context(view: ModelView, hours: int = 24) -> float:
    """Tokens that a sequence holds: its prompt and half of its answer. 0 where nobody knows."""
    lines = view.hours
    span = hours * 3600
    requests = known(lines.last("requests", span)).sum()
    if not requests:
        return 0.0
    prompt = known(lines.last("prompt_tokens.sum", span)).sum()
    output = known(lines.last("output_tokens.sum", span)).sum()
    return float((prompt + 0.5 * output) / requests)


def sequences(number: float) -> str:
    return f"{number:.0f} sequence{'' if number == 1 else 's'} in flight"


def tokens(number: float) -> str:
    """Rounded as people say it."""
    digits = 100 if number >= 1000 else 10
    return f"{round(number / digits) * digits:,.0f}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.0f} days"
