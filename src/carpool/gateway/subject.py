"""Whom limits hold: a key, a person, or a person as far as one model goes."""

from dataclasses import dataclass
from enum import StrEnum

from carpool.store.limits import Limits


class Level(StrEnum):
    KEY = "key"
    PERSON = "person"
    MODEL = "model"
    """A person, with one model."""


@dataclass(frozen=True, slots=True)
class Subject:
    """`id` is unique among subjects of all levels. `key_id`, `person_id` and `models`, the names
    of one model, say what of the ledger is theirs; None: that does not matter."""

    level: Level
    id: str
    limits: Limits
    key_id: str | None = None
    person_id: str | None = None
    models: tuple[str, ...] | None = None

    @property
    def is_metered(self) -> bool:
        """Whether there is a limit that must be counted for."""
        limits = self.limits
        counted = (limits.rpm, limits.tpm, limits.daily_tokens, limits.monthly_tokens)
        return any(limit is not None for limit in counted)

    @property
    def who(self) -> str:
        """As messages to their sender begin; "may" comes next."""
        match self.level:
            case Level.KEY:
                return "this key"
            case Level.PERSON:
                return "you, with all your keys together,"
            case Level.MODEL:
                return f"you, with the model {(self.models or ('',))[0]},"


def of_key(key_id: str, limits: Limits) -> Subject:
    return Subject(Level.KEY, f"key:{key_id}", limits, key_id=key_id)


def of_person(person_id: str, limits: Limits) -> Subject:
    return Subject(Level.PERSON, f"person:{person_id}", limits, person_id=person_id)


def of_model(person_id: str, names: tuple[str, ...], limits: Limits) -> Subject:
    """`names` are what clients call the model, the one it is known by first."""
    return Subject(
        Level.MODEL, f"model:{person_id}:{names[0]}", limits, person_id=person_id, models=names
    )
