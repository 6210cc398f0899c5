"""Who sends a request: by the key alone, with one message for every key that does not do."""

import asyncio
import base64
import os
from dataclasses import replace
from types import MappingProxyType

import pytest

from carpool.gateway.key_ring import Caller, KeyRing
from carpool.gateway.key_watch import KeyWatch
from carpool.gateway.outcome import Outcome
from carpool.gateway.refusal import Refusal
from carpool.store.database import Database
from carpool.store.errors import DatabaseAway
from carpool.store.key_store import KeySnapshot, KeyStore
from carpool.store.key_text import KEY_BYTES, hash_secret, new_key_text, parse_key_text
from carpool.store.person import Person

ANA = Person("ana", "Ana", 2.0)
NOW = 1_800_000_000.0


@pytest.fixture
def new_key(make_key):
    """A key as text and what is stored of it."""

    def make(**fields):
        text = new_key_text(os.urandom(KEY_BYTES))
        parsed = parse_key_text(text)
        known = {"key_id": parsed.key_id, "secret_sha256": hash_secret(parsed.secret)}
        return text, make_key(known | fields)

    return make


def snapshot(*keys, version=1):
    return KeySnapshot(version, keys, MappingProxyType({"ana": ANA}))


def bearer(text):
    return {b"authorization": b"Bearer " + text.encode()}


def refusal_of(ring, headers, now=NOW):
    with pytest.raises(Refusal) as caught:
        ring.identify(headers, now)
    assert caught.value.status == 401
    return caught.value


@pytest.mark.parametrize(
    "headers",
    [
        lambda text: bearer(text),
        lambda text: {b"authorization": b"bearer   " + text.encode() + b" "},
        lambda text: {b"x-api-key": text.encode()},
        lambda text: {b"authorization": b"Basic abc", b"x-api-key": text.encode()},
    ],
)
def test_a_key_stands_for_its_person(new_key, headers):
    text, key = new_key()
    ring = KeyRing()
    ring.load(snapshot(key))
    caller = ring.identify(headers(text), NOW)
    assert (caller.key, caller.person) == (key, ANA)


def test_every_key_that_does_not_do_hears_the_same(new_key):
    text, key = new_key()
    revoked_text, revoked = new_key(revoked_at=NOW - 1)
    unknown_text, _ = new_key()
    wrong_secret = text[:16] + base64.urlsafe_b64encode(bytes(32)).decode().rstrip("=")
    ring = KeyRing()
    ring.load(snapshot(key, revoked))
    tries = [
        {},
        {b"authorization": b"Bearer"},
        {b"authorization": b"Bearer \xff\xfe"},
        {b"authorization": text.encode()},
        bearer(text[:-1]),
        bearer(text + "x"),
        bearer(text.upper()),
        bearer(wrong_secret),
        bearer(revoked_text),
        bearer(unknown_text),
        {b"x-api-key": b"sk-something-else"},
    ]
    refusals = [refusal_of(ring, headers) for headers in tries]
    assert {refusal.body() for refusal in refusals} == {refusals[0].body()}
    assert refusals[0].outcome is Outcome.BAD_KEY
    for secret in (text, key.key_id, key.secret_sha256.hex()):
        assert secret.encode() not in refusals[0].body()


def test_other_headers_say_nothing_about_who_asks(new_key):
    text, key = new_key()
    ring = KeyRing()
    ring.load(snapshot(key))
    headers = {b"x-forwarded-for": b"10.0.0.1", b"x-carpool-person": b"eve", b"user": b"eve"}
    assert ring.identify(bearer(text) | headers, NOW).person is ANA
    refusal_of(ring, headers)


def test_a_key_expires_to_the_second_and_says_so_to_its_owner(new_key):
    text, key = new_key(expires_at=NOW)
    ring = KeyRing()
    ring.load(snapshot(key))
    assert ring.identify(bearer(text), NOW - 0.001).key is key
    assert "expired" in refusal_of(ring, bearer(text), NOW).message


def test_whoever_stops_working_is_told_of_once(new_key):
    told = []
    _, stays = new_key()
    _, revoked = new_key()
    _, rotated = new_key()
    _, removed = new_key()
    _, long_gone = new_key(revoked_at=NOW - 100)
    ring = KeyRing(told.append)
    ring.load(snapshot(stays, revoked, rotated, removed, long_gone))
    assert told == []
    now = (
        replace(stays, name="renamed"),
        replace(revoked, revoked_at=NOW),
        replace(rotated, secret_sha256=hash_secret(b"another")),
        long_gone,
    )
    ring.load(snapshot(*now, version=2))
    assert sorted(told) == sorted(key.key_id for key in (revoked, rotated, removed))
    ring.load(snapshot(*now, version=3))
    assert len(told) == 3


def test_when_it_is_told_the_key_is_refused_already(new_key):
    text, key = new_key()
    seen = []
    ring = KeyRing(lambda key_id: seen.append(refusal_of(ring, bearer(text)).outcome))
    ring.load(snapshot(key))
    ring.load(snapshot(replace(key, revoked_at=NOW), version=2))
    assert seen == [Outcome.BAD_KEY]


def test_changes_are_told_after_what_was_revoked_and_not_at_the_first_load(new_key):
    told = []
    _, key = new_key()
    ring = KeyRing(told.append, lambda: told.append("changed"))
    ring.load(snapshot(key))
    assert told == []
    ring.load(snapshot(replace(key, revoked_at=NOW), version=2))
    assert told == [key.key_id, "changed"]


def test_whom_a_key_stands_for_is_known_by_its_id_even_when_it_is_revoked(new_key):
    _, key = new_key(revoked_at=NOW)
    ring = KeyRing()
    ring.load(snapshot(key))
    assert ring.caller(key.key_id) == Caller(key, ANA)
    assert ring.caller("nothing") is None


# ------------------------------------------------------------------ level with the database


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr("carpool.gateway.key_watch.POLL_S", 0.001)
    database = Database(f"sqlite:///{tmp_path}/carpool.db")
    database.migrate()
    yield KeyStore(database)
    database.close()


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_a_key_that_is_added_or_revoked_is_known_without_a_restart(run, store):
    async def scenario():
        revoked = []
        ring = KeyRing(revoked.append)
        watch = KeyWatch(ring, store)
        watch.load()
        task = asyncio.create_task(watch.run())
        _, new = await asyncio.to_thread(store.add_key_for, "Ana", weight=2.0)
        await until(lambda: ring.version == store.version())
        caller = ring.identify(bearer(new.text), NOW)
        assert (caller.person.name, caller.person.weight) == ("Ana", 2.0)
        await asyncio.to_thread(store.revoke, new.key.key_id)
        await until(lambda: revoked)
        assert revoked == [new.key.key_id]
        refusal_of(ring, bearer(new.text))
        task.cancel()

    run(scenario())


def test_while_the_database_is_away_known_keys_go_on_working(run, store, monkeypatch, caplog):
    async def scenario():
        ring = KeyRing()
        _, new = await asyncio.to_thread(store.add_key_for, "Ana")
        watch = KeyWatch(ring, store)
        watch.load()
        version, tries = store.version, []

        def away():
            tries.append(1)
            raise DatabaseAway("gone")

        monkeypatch.setattr(store, "version", away)
        task = asyncio.create_task(watch.run())
        await until(lambda: len(tries) >= 3)
        assert ring.identify(bearer(new.text), NOW).key.key_id == new.key.key_id
        assert len(caplog.records) == 1, "said once"
        monkeypatch.setattr(store, "version", version)
        await asyncio.to_thread(store.revoke, new.key.key_id)
        await until(lambda: ring.version == version())
        refusal_of(ring, bearer(new.text))
        task.cancel()

    run(scenario())


def test_a_change_is_there_as_soon_as_it_was_asked_for(run, store, monkeypatch, caplog):
    async def scenario():
        ring = KeyRing()
        watch = KeyWatch(ring, store)
        _, new = store.add_key_for("Ana")
        await watch.refresh()
        assert ring.identify(bearer(new.text), NOW).person.name == "Ana"

        def away():
            raise DatabaseAway("gone")

        monkeypatch.setattr(store, "snapshot", away)
        await watch.refresh()
        assert ring.identify(bearer(new.text), NOW).person.name == "Ana"
        assert "cannot be read" in caplog.text

    run(scenario())
