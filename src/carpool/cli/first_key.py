"""A key for whoever starts the first server: nobody should need a second command to try it."""

import getpass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from carpool.store.database import Database
    from carpool.store.key_store import NewKey


def first_key(database: "Database | None") -> "NewKey | None":
    """A person called like the user of this machine, with a key; None where there are people,
    or no database."""
    if database is None:
        return None
    from carpool.store.key_store import KeyStore

    store = KeyStore(database)
    if store.list_people():
        return None
    return store.add_key_for(_user_name(), None)[1]


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry, as containers have
        return "me"
