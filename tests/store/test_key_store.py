"""People and keys: made, changed, seen by pollers, and never with their secrets."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from carpool.store.database import Database
from carpool.store.errors import InvalidField, NotFound
from carpool.store.key_store import KeyStore
from carpool.store.key_text import parse_key_text, secret_matches
from carpool.store.key_view import key_view
from carpool.store.lane import Lane
from carpool.store.limits import Limits

LIMITS = Limits(60, 10_000, 4, 2_000, 500, 10**6, 10**9)


def test_a_key_comes_back_as_it_was_made(keys: KeyStore, clock: Callable[[], float]) -> None:
    person = keys.add_person("Ana", weight=2.0)
    new = keys.add_key(
        person.person_id,
        "laptop",
        models=["fast", "qwen3:0.6b"],
        limits=LIMITS,
        lane=Lane.BATCH,
        is_private=True,
        expires_at=clock() + 60,
    )
    assert keys.get_key(new.key.key_id) == new.key
    assert keys.list_keys() == (new.key,)
    assert keys.find_person("Ana") == keys.get_person(person.person_id) == person
    assert new.key.limits == LIMITS
    assert new.key.lane is Lane.BATCH
    assert [new.key.may_use(model) for model in ("fast", "slow")] == [True, False]


def test_by_default_a_key_may_do_everything_for_good(keys: KeyStore) -> None:
    person = keys.add_person("Ana")
    key = keys.get_key(keys.add_key(person.person_id, "laptop").key.key_id)
    assert (key.models, key.limits, key.lane) == (None, Limits(), Lane.INTERACTIVE)
    assert (key.is_private, key.expires_at, key.revoked_at) == (False, None, None)
    assert key.may_use("anything")


def test_the_text_opens_the_key_until_it_is_rotated(keys: KeyStore) -> None:
    old = keys.add_key(keys.add_person("Ana").person_id, "laptop")
    new = keys.rotate(old.key.key_id)
    assert new.key.key_id == old.key.key_id
    stored = keys.get_key(old.key.key_id)
    for text, is_right in ((old.text, False), (new.text, True)):
        parsed = parse_key_text(text)
        assert parsed is not None
        assert parsed.key_id == stored.key_id
        assert secret_matches(parsed.secret, stored.secret_sha256) is is_right


def test_a_revoked_key_stays_and_stays_revoked(keys: KeyStore, clock: Callable[[], float]) -> None:
    key = keys.add_key(keys.add_person("Ana").person_id, "laptop").key
    revoked = keys.revoke(key.key_id)
    assert revoked == replace(key, revoked_at=clock())
    assert not revoked.is_live(clock())
    clock.now += 100  # type: ignore[attr-defined]
    assert keys.revoke(key.key_id) == revoked
    assert keys.list_keys() == (revoked,)
    with pytest.raises(InvalidField, match="revoked; add a new one"):
        keys.rotate(key.key_id)


def test_an_expired_key_is_not_rotated(keys: KeyStore, clock: Callable[[], float]) -> None:
    key = keys.add_key(keys.add_person("Ana").person_id, "old", expires_at=clock() + 1).key
    assert key.is_live(clock())
    clock.now += 1  # type: ignore[attr-defined]
    assert not key.is_live(clock())
    with pytest.raises(InvalidField, match="expired"):
        keys.rotate(key.key_id)


def test_every_change_and_nothing_else_raises_the_version(
    keys: KeyStore, database: Database
) -> None:
    elsewhere = KeyStore(database)
    seen = [elsewhere.version()]

    def note() -> None:
        seen.append(elsewhere.version())

    person = keys.add_person("Ana")
    note()
    key = keys.add_key(person.person_id, "laptop").key
    note()
    keys.rotate(key.key_id)
    note()
    keys.change_person(person.person_id, weight=3.0)
    note()
    keys.change_key(key.key_id, limits={"rpm": 5})
    note()
    keys.add_key_for("Ben", "phone")
    note()
    keys.revoke(key.key_id)
    note()
    assert seen == sorted(set(seen))
    keys.snapshot(), keys.list_keys(), keys.find_key("Ben")
    with pytest.raises(InvalidField):
        keys.add_person("Ana")
    assert elsewhere.version() == seen[-1]


def test_a_snapshot_has_everybody_and_every_key(keys: KeyStore) -> None:
    ana, ben = keys.add_person("Ana"), keys.add_person("Ben", 0.5)
    made = [keys.add_key(person.person_id, "key").key for person in (ana, ben, ana)]
    made[0] = keys.revoke(made[0].key_id)
    snapshot = keys.snapshot()
    assert snapshot.version == keys.version()
    assert sorted(snapshot.keys, key=str) == sorted(made, key=str)
    assert snapshot.people == {ana.person_id: ana, ben.person_id: ben}


def test_changes_from_many_threads_all_count(keys: KeyStore) -> None:
    def add(name: str) -> None:
        keys.add_key_for(name, "key")

    names = ["Ana", "Ben", "Ana", "Ben", "Ana", "Ben"]
    threads = [threading.Thread(target=add, args=[name]) for name in names]
    before = keys.version()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys.version() == before + len(names)
    assert [person.name for person in keys.list_people()] == ["Ana", "Ben"]
    assert len(keys.list_keys()) == len(names)


def test_adding_for_a_name_makes_the_person_once(keys: KeyStore) -> None:
    ana, first = keys.add_key_for("Ana", "laptop", weight=2.0)
    same, second = keys.add_key_for(" Ana ", limits=LIMITS)
    assert same == ana == replace(ana, weight=2.0)
    assert first.key.person_id == second.key.person_id == ana.person_id
    assert second.key.name == "Ana"
    heavier, _ = keys.add_key_for("Ana", "phone", weight=3.0)
    assert heavier == replace(ana, weight=3.0) == keys.find_person("Ana")


def test_a_bad_key_leaves_no_person_behind(keys: KeyStore) -> None:
    with pytest.raises(InvalidField, match="weight"):
        keys.add_key_for("Ana", weight=-1)
    with pytest.raises(InvalidField, match="rpm"):
        keys.add_key_for("Ana", limits=Limits(rpm=0))
    assert keys.list_people() == ()


def test_what_is_not_named_in_a_change_stays(keys: KeyStore, clock: Callable[[], float]) -> None:
    ana, new = keys.add_key_for("Ana", "laptop", limits=LIMITS, models=["fast"], lane=Lane.BATCH)
    changed = keys.change_key(new.key.key_id, limits={"rpm": 5, "tpm": None})
    assert changed == replace(new.key, limits=replace(LIMITS, rpm=5, tpm=None))
    changed = keys.change_key(new.key.key_id, models=None, expires_at=clock() + 5, is_private=True)
    assert (changed.models, changed.expires_at, changed.is_private) == (None, clock() + 5, True)
    assert keys.change_key(new.key.key_id, expires_at=None, name="desk").expires_at is None
    assert keys.get_key(new.key.key_id) == replace(changed, expires_at=None, name="desk")
    heavier = keys.change_person(ana.person_id, weight=2.0, limits={"daily_tokens": 100})
    assert heavier == replace(ana, weight=2.0, limits=Limits(daily_tokens=100))
    freed = keys.change_person(ana.person_id, limits={"daily_tokens": None}, name="Anna")
    assert freed == replace(ana, weight=2.0, name="Anna") == keys.get_person(ana.person_id)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"limits": {"rpm": 0}}, "rpm"),
        ({"limits": {"rps": 5}}, "rps"),
        ({"models": []}, "models"),
        ({"expires_at": 0.0}, "expires_at"),
        ({"name": ""}, "label"),
    ],
)
def test_a_bad_change_of_a_key_changes_nothing(
    keys: KeyStore, changes: dict[str, object], field: str
) -> None:
    _, new = keys.add_key_for("Ana", limits=LIMITS)
    version = keys.version()
    with pytest.raises(InvalidField, match=f"^{field}:"):
        keys.change_key(new.key.key_id, **changes)  # type: ignore[arg-type]
    assert keys.get_key(new.key.key_id) == new.key
    assert keys.version() == version


def test_a_key_that_expired_can_be_given_more_time_and_a_revoked_one_cannot(
    keys: KeyStore, clock: Callable[[], float]
) -> None:
    _, new = keys.add_key_for("Ana", expires_at=clock() + 1)
    clock.now += 10  # type: ignore[attr-defined]
    keys.change_key(new.key.key_id, limits={"rpm": 5})
    assert keys.change_key(new.key.key_id, expires_at=clock() + 1).is_live(clock())
    keys.revoke(new.key.key_id)
    with pytest.raises(InvalidField, match="revoked; add a new one"):
        keys.change_key(new.key.key_id, limits={"rpm": 5})


def test_two_people_cannot_come_to_have_one_name(keys: KeyStore) -> None:
    ana, _ = keys.add_person("Ana"), keys.add_person("Ben")
    with pytest.raises(InvalidField, match="there is a person named 'Ben'"):
        keys.change_person(ana.person_id, name="Ben")
    assert keys.change_person(ana.person_id, name="Ana") == ana


def test_a_person_is_removed_with_their_keys_but_not_with_keys_that_work(keys: KeyStore) -> None:
    ana, first = keys.add_key_for("Ana", "laptop")
    _, second = keys.add_key_for("Ana", "phone")
    _, other = keys.add_key_for("Ben")
    keys.revoke(first.key.key_id)
    with pytest.raises(InvalidField, match=second.key.key_id):
        keys.remove_person(ana.person_id)
    assert len(keys.list_keys()) == 3
    assert keys.remove_person(ana.person_id, with_keys=True) == ana
    assert keys.list_keys() == (other.key,)
    assert keys.find_person("Ana") is None
    assert keys.add_person("Ana").person_id != ana.person_id


def test_a_person_is_called_by_name_or_id(keys: KeyStore) -> None:
    ana = keys.add_person("Ana", limits=LIMITS)
    assert keys.person_called(" Ana ") == keys.person_called(ana.person_id) == ana


def test_a_key_is_found_by_id_text_or_its_only_owner(keys: KeyStore) -> None:
    ana, first = keys.add_key_for("Ana", "laptop")
    for called in (first.key.key_id, f"cp-{first.key.key_id}", first.text, "Ana"):
        assert keys.find_key(called) == first.key
    _, second = keys.add_key_for("Ana", "phone")
    with pytest.raises(NotFound, match="2 keys") as caught:
        keys.find_key("Ana")
    assert first.key.key_id in str(caught.value)
    keys.revoke(first.key.key_id)
    assert keys.find_key("Ana") == second.key
    keys.revoke(second.key.key_id)
    with pytest.raises(NotFound, match="no key that works"):
        keys.find_key("Ana")
    assert keys.find_key(second.key.key_id).person_id == ana.person_id


def test_what_is_not_there_is_not_found(keys: KeyStore) -> None:
    by_id = (keys.get_key, keys.rotate, keys.revoke, keys.get_person, keys.remove_person)
    for ask in (*by_id, keys.change_key, keys.change_person, keys.find_key, keys.person_called):
        with pytest.raises(NotFound):
            ask("nobody")
    with pytest.raises(NotFound):
        keys.add_key("nobody", "laptop")
    with pytest.raises(NotFound):
        keys.change_person("nobody", weight=1.0)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_weight_out_of_bounds_is_refused(keys: KeyStore, weight: float) -> None:
    with pytest.raises(InvalidField, match=r"weight: takes 0\.01 to 100"):
        keys.add_person("Ana", weight)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x1b[2J", "x" * 101, "\ud800", "a\0b"])
def test_a_name_that_does_not_print_is_refused(keys: KeyStore, name: str) -> None:
    with pytest.raises(InvalidField, match="printable"):
        keys.add_person(name)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"limits": Limits(rpm=0)}, "rpm"),
        ({"limits": Limits(monthly_tokens=-5)}, "monthly_tokens"),
        ({"limits": Limits(tpm=10**30)}, "tpm"),
        ({"models": []}, "models"),
        ({"models": ["fast", ""]}, "models"),
        ({"expires_at": 1_800_000_000.0}, "expires_at"),
        ({"expires_at": float("nan")}, "expires_at"),
    ],
)
def test_a_bad_option_is_named(keys: KeyStore, options: dict[str, object], field: str) -> None:
    person = keys.add_person("Ana")
    with pytest.raises(InvalidField, match=f"^{field}:") as caught:
        keys.add_key(person.person_id, "laptop", **options)  # type: ignore[arg-type]
    assert caught.value.field == field
    assert keys.list_keys() == ()


def test_no_secret_and_no_hash_shows(keys: KeyStore, clock: Callable[[], float]) -> None:
    person, new = keys.add_key_for("Ana", limits=LIMITS, models=["fast"])
    view = key_view(new.key, person, clock())
    assert view["state"] == "works"
    assert view["rpm"] == 60
    assert view["created_at"] == "2027-01-15T08:00:00Z"
    parsed = parse_key_text(new.text)
    assert parsed is not None
    for shown in (repr(new.key), str(keys.snapshot()), str(view)):
        assert new.text[16:] not in shown
        assert new.key.secret_sha256.hex() not in shown
        assert repr(new.key.secret_sha256) not in shown
