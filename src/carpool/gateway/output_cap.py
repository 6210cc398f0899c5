"""How long an answer may get: what the client asked for, within what its key allows."""

from collections.abc import Mapping
from typing import Any

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal

MAX_SEQUENCES = 1 << 20
"""What is over this is over everything."""
_NAMES = {
    ApiKind.CHAT: ("max_completion_tokens", "max_tokens"),
    ApiKind.COMPLETIONS: ("max_tokens",),
    ApiKind.RESPONSES: ("max_output_tokens",),
    ApiKind.MESSAGES: ("max_tokens",),
}
_LLAMA_CPPS_NAME = "n_predict"
"""Which llama.cpp reads in place of the others, and the others' engines do not."""


def has_output(kind: ApiKind) -> bool:
    """Whether answers of this kind are written token by token."""
    return kind in _NAMES


def num_sequences(kind: ApiKind, fields: Mapping[str, Any]) -> int:
    """Answers that are written at once: `n` (or `best_of`) for each prompt of a list. Raises
    Refusal for a number that is written as another type: some engines would take it."""
    if kind not in (ApiKind.CHAT, ApiKind.COMPLETIONS):
        return 1
    number = max(_count("n", fields.get("n")), _count("best_of", fields.get("best_of")))
    prompt = fields.get("prompt")
    if kind is ApiKind.COMPLETIONS and isinstance(prompt, list) and len(prompt) > 1:
        number *= 1 if isinstance(prompt[0], int) else len(prompt)
    return number


def output_cap(kind: ApiKind, fields: Mapping[str, Any]) -> int | None:
    """The least cap that the request names; None if it names none, or nonsense, which the
    engine will refuse."""
    caps = [fields.get(name) for name in _NAMES.get(kind, ())]
    numbers = [cap for cap in caps if isinstance(cap, int) and not isinstance(cap, bool)]
    return min((cap for cap in numbers if cap > 0), default=None)


def clamped(kind: ApiKind, fields: Mapping[str, Any], limit: int | None) -> dict[str, int]:
    """What to set so that no cap exceeds `limit`, by whatever name; a request without any cap
    gets one. Below nought means "no end" to some engines. Raises Refusal for a cap that is no
    number, which some would read as one."""
    names = _NAMES.get(kind, ())
    if limit is None or not names:
        return {}
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    changes = {} if given else {names[-1]: limit}
    if fields.get(_LLAMA_CPPS_NAME) is not None:
        given[_LLAMA_CPPS_NAME] = fields[_LLAMA_CPPS_NAME]
    over = {name for name, value in given.items() if not 0 <= _number(name, value) <= limit}
    return changes | dict.fromkeys(over, limit)


def under_one_name(
    kind: ApiKind, fields: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """For an engine that knows the cap by `name` alone: fields to set, and fields to take out."""
    others = [other for other in _NAMES.get(kind, ()) if other != name and other in fields]
    if not others:
        return {}, ()
    cap = output_cap(kind, fields)
    return ({} if cap is None else {name: cap}), tuple(others)


def _count(name: str, value: Any) -> int:
    if value is None or isinstance(value, bool):
        return 1
    return min(max(1, _number(name, value)), MAX_SEQUENCES)


def _number(name: str, value: Any) -> int:
    """Raises Refusal for what is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise Refusal(
        Outcome.BAD_REQUEST,
        f"{name} is {value!r:.100}, but must be a whole number",
        limit=name,
    )
