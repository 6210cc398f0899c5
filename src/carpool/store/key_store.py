"""People and keys, for those who manage them and for gateways that keep them in memory."""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, TypedDict, Unpack

from sqlalchemy import Connection, delete, insert, select, update

from carpool.store import checks
from carpool.store.database import Database
from carpool.store.errors import InvalidField, NotFound
from carpool.store.key import Key
from carpool.store.key_text import (
    ID_BYTES,
    SECRET_BYTES,
    format_key_text,
    hash_secret,
    new_id,
    parse_key_text,
)
from carpool.store.lane import Lane
from carpool.store.limits import NO_LIMITS, Limits
from carpool.store.person import Person
from carpool.store.rows import key_columns, key_of, person_columns, person_of
from carpool.store.schema import key_version, keys, people


class KeyOptions(TypedDict, total=False):
    """What a key may be given: none means all models, no limits, interactive, for good."""

    models: Iterable[str] | None
    limits: Limits
    lane: Lane
    is_private: bool
    expires_at: float | None


class KeyChanges(TypedDict, total=False):
    """What to change of a key; `limits` by name, None for no limit."""

    name: str
    models: Iterable[str] | None
    limits: Mapping[str, int | None]
    lane: Lane
    is_private: bool
    expires_at: float | None
    record_until: float | None


class PersonChanges(TypedDict, total=False):
    """What to change of a person; `limits` by name, None for no limit."""

    name: str
    weight: float
    limits: Mapping[str, int | None]


class NewKey(NamedTuple):
    """`text` is the key with its secret. It is nowhere else: show it now or never."""

    key: Key
    text: str


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """Everybody and every key, revoked and expired ones too, oldest first."""

    version: int
    keys: tuple[Key, ...]
    people: Mapping[str, Person]


class KeyStore:
    """Every method is one transaction, and raises DatabaseAway or StoreError.

    Changes are serialised by the version, which each takes first: what it checks stays true.
    `clock` gives unix seconds, `random_bytes(n)` n unguessable bytes.
    """

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.database = database
        self._clock = clock
        self._random_bytes = random_bytes

    def add_person(self, name: str, weight: float = 1.0, limits: Limits = NO_LIMITS) -> Person:
        """Raises InvalidField, also for a name that somebody has."""
        person = Person(
            new_id(self._random_bytes(ID_BYTES)),
            checks.check_name("name", name),
            checks.check_weight(weight),
            checks.check_limits(limits),
        )
        with self.database.write() as connection:
            _bump(connection)
            _check_free(connection, person.name)
            connection.execute(insert(people).values(person_columns(person)))
        return person

    def find_person(self, name: str) -> Person | None:
        with self.database.read() as connection:
            return _person_named(connection, name.strip())

    def list_people(self) -> tuple[Person, ...]:
        """By name."""
        with self.database.read() as connection:
            return tuple(_people(connection))

    def get_person(self, person_id: str) -> Person:
        """Raises NotFound."""
        with self.database.read() as connection:
            return _get_person(connection, person_id)

    def person_called(self, called: str) -> Person:
        """The person with this id or name. Raises NotFound."""
        with self.database.read() as connection:
            row = connection.execute(select(people).where(people.c.person_id == called)).first()
            found = person_of(row) if row else _person_named(connection, called.strip())
        if found is None:
            raise NotFound(f"no person {called!r}; `carpool people list` has all")
        return found

    def change_person(self, person_id: str, **changes: Unpack[PersonChanges]) -> Person:
        """What is not named stays as it is. Raises InvalidField, NotFound."""
        with self.database.write() as connection:
            _bump(connection)
            return _change_person(connection, person_id, changes)

    def remove_person(self, person_id: str, *, with_keys: bool = False) -> Person:
        """Forget a person and all their keys; what they used stays in the ledger, by their id.

        Raises NotFound, and InvalidField for keys that work, unless they are to end `with_keys`.
        """
        with self.database.write() as connection:
            _bump(connection)
            person = _get_person(connection, person_id)
            live = [key for key in _keys(connection, person_id) if key.is_live(self._clock())]
            if live and not with_keys:
                ids = ", ".join(key.key_id for key in live)
                raise InvalidField(
                    "person",
                    f"{person.name} has keys that work ({ids}); revoke them first, or have that "
                    "done (--revoke-keys, ?revoke_keys=true)",
                )
            connection.execute(delete(keys).where(keys.c.person_id == person_id))
            connection.execute(delete(people).where(people.c.person_id == person_id))
            return person

    def add_key(self, person_id: str, name: str, **options: Unpack[KeyOptions]) -> NewKey:
        """A key of `person_id`; `name` is its label. Raises InvalidField, NotFound."""
        new = self._new_key(person_id, name, options)
        with self.database.write() as connection:
            _bump(connection)
            _get_person(connection, person_id)
            connection.execute(insert(keys).values(key_columns(new.key)))
        return new

    def add_key_for(
        self,
        person_name: str,
        name: str | None = None,
        *,
        weight: float | None = None,
        **options: Unpack[KeyOptions],
    ) -> tuple[Person, NewKey]:
        """A key for the person of that name, who is added if new; a `weight` given is theirs
        from now on. All of it or, where it raises InvalidField, nothing."""
        person_name = checks.check_name("name", person_name)
        person = Person(new_id(self._random_bytes(ID_BYTES)), person_name)
        new = self._new_key(person.person_id, person_name if name is None else name, options)
        with self.database.write() as connection:
            _bump(connection)
            known = _person_named(connection, person_name)
            if known is None:
                connection.execute(insert(people).values(person_columns(person)))
            else:
                person = known
            if weight is not None:
                person = _change_person(connection, person.person_id, {"weight": weight})
            new = new._replace(key=replace(new.key, person_id=person.person_id))
            connection.execute(insert(keys).values(key_columns(new.key)))
        return person, new

    def list_keys(self) -> tuple[Key, ...]:
        """All of them, revoked and expired ones too, oldest first."""
        with self.database.read() as connection:
            return tuple(_keys(connection))

    def get_key(self, key_id: str) -> Key:
        """Raises NotFound."""
        with self.database.read() as connection:
            return _get(connection, key_id)

    def find_key(self, called: str) -> Key:
        """The key with this id or text, or the only live key of the person with this name.

        Raises NotFound, also where several keys could be meant.
        """
        parsed = parse_key_text(called)
        key_id = parsed.key_id if parsed else called.strip().removeprefix("cp-")
        with self.database.read() as connection:
            row = connection.execute(select(keys).where(keys.c.key_id == key_id)).first()
            if row is not None:
                return key_of(row)
            person = _person_named(connection, called.strip())
            found = [] if person is None else _keys(connection, person.person_id)
        live = [key for key in found if key.is_live(self._clock())]
        match live:
            case [key]:
                return key
            case [] if person is None:
                raise NotFound("no such key and no such person; `carpool keys list` has all")
            case []:
                raise NotFound(f"{called} has no key that works; name one by its id")
        ids = ", ".join(key.key_id for key in live)
        raise NotFound(f"{called} has {len(live)} keys; name one of {ids}")

    def change_key(self, key_id: str, **changes: Unpack[KeyChanges]) -> Key:
        """What is not named stays as it is. Raises InvalidField, also for a key that was
        revoked, and NotFound."""
        with self.database.write() as connection:
            _bump(connection)
            key = _get(connection, key_id)
            if key.revoked_at is not None:
                raise InvalidField("key", f"{key_id} is revoked; add a new one")
            key = _changed(key, changes, self._clock())
            _update(connection, key)
            return key

    def rotate(self, key_id: str) -> NewKey:
        """A new secret in place of the old, which stops working. Raises InvalidField, NotFound."""
        secret = self._random_bytes(SECRET_BYTES)
        with self.database.write() as connection:
            _bump(connection)
            key = _get(connection, key_id)
            if not key.is_live(self._clock()):
                state = "expired" if key.revoked_at is None else "revoked"
                raise InvalidField("key", f"{key_id} is {state}; add a new one")
            key = replace(key, secret_sha256=hash_secret(secret))
            _update(connection, key)
        return NewKey(key, format_key_text(key_id, secret))

    def revoke(self, key_id: str) -> Key:
        """End a key for good; once more changes nothing. Raises NotFound."""
        with self.database.write() as connection:
            _bump(connection)
            key = _get(connection, key_id)
            if key.revoked_at is None:
                key = replace(key, revoked_at=self._clock())
                _update(connection, key)
            return key

    def version(self) -> int:
        """Greater after every change of people or keys. One small query: poll it."""
        with self.database.read() as connection:
            return _version(connection)

    def snapshot(self) -> KeySnapshot:
        with self.database.read() as connection:
            # First: what is read after it can only be newer than the version says, and the
            # next poll then reads again.
            version = _version(connection)
            found = tuple(_keys(connection))
            everybody = {person.person_id: person for person in _people(connection)}
        return KeySnapshot(version, found, MappingProxyType(everybody))

    def _new_key(self, person_id: str, name: str, options: KeyOptions) -> NewKey:
        """Checked, not yet stored. Raises InvalidField."""
        now, secret = self._clock(), self._random_bytes(SECRET_BYTES)
        key = Key(
            key_id=new_id(self._random_bytes(ID_BYTES)),
            secret_sha256=hash_secret(secret),
            person_id=person_id,
            name=checks.check_name("label", name),
            models=checks.check_models(options.get("models")),
            limits=checks.check_limits(options.get("limits", NO_LIMITS)),
            lane=options.get("lane", Lane.INTERACTIVE),
            is_private=options.get("is_private", False),
            created_at=now,
            expires_at=checks.check_expires_at(options.get("expires_at"), now),
            revoked_at=None,
        )
        return NewKey(key, format_key_text(key.key_id, secret))


def _bump(connection: Connection) -> None:
    connection.execute(update(key_version).values(version=key_version.c.version + 1))


def _version(connection: Connection) -> int:
    return int(connection.execute(select(key_version.c.version)).scalar_one())


def _person_named(connection: Connection, name: str) -> Person | None:
    row = connection.execute(select(people).where(people.c.name == name)).first()
    return None if row is None else person_of(row)


def _get_person(connection: Connection, person_id: str) -> Person:
    row = connection.execute(select(people).where(people.c.person_id == person_id)).first()
    if row is None:
        raise NotFound(f"no person {person_id!r}")
    return person_of(row)


def _check_free(connection: Connection, name: str) -> None:
    if _person_named(connection, name) is not None:
        raise InvalidField("name", f"there is a person named {name!r}; take another")


def _change_person(connection: Connection, person_id: str, changes: PersonChanges) -> Person:
    old = _get_person(connection, person_id)
    person = replace(
        old,
        name=checks.check_name("name", changes.get("name", old.name)),
        weight=checks.check_weight(changes.get("weight", old.weight)),
        limits=checks.changed_limits(old.limits, changes.get("limits", {})),
    )
    if person.name != old.name:
        _check_free(connection, person.name)
    mine = people.c.person_id == person_id
    connection.execute(update(people).where(mine).values(person_columns(person)))
    return person


def _people(connection: Connection) -> list[Person]:
    return [person_of(row) for row in connection.execute(select(people).order_by(people.c.name))]


def _get(connection: Connection, key_id: str) -> Key:
    row = connection.execute(select(keys).where(keys.c.key_id == key_id)).first()
    if row is None:
        raise NotFound("no key with this id; `carpool keys list` has all")
    return key_of(row)


def _keys(connection: Connection, person_id: str | None = None) -> list[Key]:
    query = select(keys).order_by(keys.c.created_at, keys.c.key_id)
    if person_id is not None:
        query = query.where(keys.c.person_id == person_id)
    return [key_of(row) for row in connection.execute(query)]


def _changed(key: Key, changes: KeyChanges, now: float) -> Key:
    expires_at = key.expires_at
    if "expires_at" in changes:
        expires_at = checks.check_expires_at(changes["expires_at"], now)
    return replace(
        key,
        name=checks.check_name("label", changes.get("name", key.name)),
        models=checks.check_models(changes.get("models", key.models)),
        limits=checks.changed_limits(key.limits, changes.get("limits", {})),
        lane=changes.get("lane", key.lane),
        is_private=changes.get("is_private", key.is_private),
        expires_at=expires_at,
        record_until=changes.get("record_until", key.record_until),
    )


def _update(connection: Connection, key: Key) -> None:
    mine = keys.c.key_id == key.key_id
    connection.execute(update(keys).where(mine).values(key_columns(key)))
