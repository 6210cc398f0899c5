"""The admin API's key: one at a time, of no use as anybody's key, its secret nowhere."""

from collections.abc import Callable

from carpool.store.admin_key import AdminKeyStore
from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.store.key_text import KeyKind, parse_key_text, redact_keys, secret_matches


def test_there_is_none_at_first_and_then_one_at_a_time(
    database: Database, clock: Callable[[], float]
) -> None:
    store = AdminKeyStore(database, clock)
    assert store.current() is None
    first, second = store.renew(), store.renew()
    assert store.current() == second.key
    assert second.key.created_at == clock()
    for new, is_right in ((first, False), (second, True)):
        parsed = parse_key_text(new.text, KeyKind.ADMIN)
        assert parsed is not None
        assert parsed.key_id == new.key.key_id
        assert secret_matches(parsed.secret, second.key.secret_sha256) is is_right


def test_the_two_kinds_of_keys_are_told_apart(database: Database) -> None:
    admin = AdminKeyStore(database).renew().text
    _, new = KeyStore(database).add_key_for("Ana")
    assert admin.startswith("cpa-")
    assert parse_key_text(admin) is None
    assert parse_key_text(new.text, KeyKind.ADMIN) is None


def test_its_secret_shows_nowhere(database: Database) -> None:
    new = AdminKeyStore(database).renew()
    secret = new.text.removeprefix(f"cpa-{new.key.key_id}-")
    for shown in (repr(new.key), redact_keys(f"the key {new.text}, please")):
        assert new.key.key_id in shown
        assert secret not in shown
        assert repr(new.key.secret_sha256) not in shown
