"""How long an answer may get: what the client asked for, within what its key allows."""

from collections.abc import Mapping
from typing import Any

from carpool.gateway.api_kind import ApiKind

_NAMES = {
    ApiKind.CHAT: ("max_completion_tokens", "max_tokens"),
    ApiKind.COMPLETIONS: ("max_tokens",),
    ApiKind.RESPONSES: ("max_output_tokens",),
    ApiKind.MESSAGES: ("max_tokens",),
}


def has_output(kind: ApiKind) -> bool:
    """Whether answers of this kind are written token by token."""
    return kind in _NAMES


def num_sequences(kind: ApiKind, fields: Mapping[str, Any]) -> int:
    """Answers that are written at once: `n` (or `best_of`) for each prompt of a list."""
    if kind not in (ApiKind.CHAT, ApiKind.COMPLETIONS):
        return 1
    number = max(_count(fields.get("n")), _count(fields.get("best_of")))
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
    gets one."""
    names = _NAMES.get(kind, ())
    if limit is None or not names:
        return {}
    given = {name: fields[name] for name in names if fields.get(name) is not None}
    if not given:
        return {names[-1]: limit}
    return {
        name: limit
        for name, value in given.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > limit
    }


def under_one_name(
    kind: ApiKind, fields: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """For an engine that knows the cap by `name` alone: fields to set, and fields to take out."""
    others = [other for other in _NAMES.get(kind, ()) if other != name and other in fields]
    if not others:
        return {}, ()
    cap = output_cap(kind, fields)
    return ({} if cap is None else {name: cap}), tuple(others)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1
