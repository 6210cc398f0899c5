"""People and keys as rows of their tables, and back."""

from dataclasses import asdict, fields
from typing import Any

from sqlalchemy import Row

from carpool.store.key import Key
from carpool.store.lane import Lane
from carpool.store.limits import LIMIT_NAMES, Limits
from carpool.store.person import Person


def person_of(row: Row[Any]) -> Person:
    columns = dict(row._mapping)
    return Person(limits=_limits_of(columns), **columns)


def person_columns(person: Person) -> dict[str, Any]:
    columns = asdict(person)
    limits: dict[str, Any] = columns.pop("limits")
    return columns | limits


def key_of(row: Row[Any]) -> Key:
    columns = dict(row._mapping)
    models = columns.pop("models")
    return Key(
        limits=_limits_of(columns),
        models=None if models is None else frozenset(models),
        lane=Lane(columns.pop("lane")),
        **columns,
    )


def key_columns(key: Key) -> dict[str, Any]:
    columns = {field.name: getattr(key, field.name) for field in fields(key)}
    limits = columns.pop("limits")
    models = None if key.models is None else sorted(key.models)
    return columns | asdict(limits) | {"models": models, "lane": key.lane.value}


def _limits_of(columns: dict[str, Any]) -> Limits:
    """Taken out of `columns`."""
    return Limits(**{name: columns.pop(name) for name in LIMIT_NAMES})
