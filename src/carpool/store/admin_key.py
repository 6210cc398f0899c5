"""The key of the admin API: one at a time, `cpa-<key id>-<secret>`, of the secret only its hash."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import select, update

from carpool.store.database import Database
from carpool.store.key_text import (
    ID_BYTES,
    SECRET_BYTES,
    KeyKind,
    format_key_text,
    hash_secret,
    new_id,
)
from carpool.store.schema import admin_key


@dataclass(frozen=True, slots=True)
class AdminKey:
    """`key_id` is public: it says in the log who changed what. `created_at` is unix seconds."""

    key_id: str
    secret_sha256: bytes = field(repr=False)
    created_at: float


class NewAdminKey(NamedTuple):
    """`text` is the key with its secret. It is nowhere else: show it now or never."""

    key: AdminKey
    text: str


class AdminKeyStore:
    """Every method is one transaction, and raises DatabaseAway or StoreError."""

    def __init__(
        self,
        database: Database,
        clock: Callable[[], float] = time.time,
        random_bytes: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._database = database
        self._clock = clock
        self._random_bytes = random_bytes

    def renew(self) -> NewAdminKey:
        """A new key in place of the one before, which stops working."""
        key_id, secret = new_id(self._random_bytes(ID_BYTES)), self._random_bytes(SECRET_BYTES)
        key = AdminKey(key_id, hash_secret(secret), self._clock())
        with self._database.write() as connection:
            connection.execute(
                update(admin_key).values(
                    key_id=key.key_id, secret_sha256=key.secret_sha256, created_at=key.created_at
                )
            )
        return NewAdminKey(key, format_key_text(key_id, secret, KeyKind.ADMIN))

    def current(self) -> AdminKey | None:
        """None until there has been a first one."""
        columns = (admin_key.c.key_id, admin_key.c.secret_sha256, admin_key.c.created_at)
        with self._database.read() as connection:
            row = connection.execute(select(*columns)).one()
        return None if row.key_id is None else AdminKey(*row)
