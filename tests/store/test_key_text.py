"""Keys as text: one spelling each, nothing else accepted, secrets never shown."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.store.key_text import (
    KEY_BYTES,
    format_key_text,
    hash_secret,
    new_key_text,
    parse_key_text,
    redact_keys,
    secret_matches,
)

randoms = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
TEXT = new_key_text(bytes(range(KEY_BYTES)))


@given(randoms)
def test_a_key_can_be_read_back(random: bytes) -> None:
    text = new_key_text(random)
    assert re.fullmatch(r"cp-[a-z2-7]{12}-[A-Za-z0-9_-]{43}", text)
    parsed = parse_key_text(text)
    assert parsed is not None
    assert parsed.secret == random[8:]
    assert format_key_text(*parsed) == text


@given(randoms, st.integers(0, 58), st.characters())
def test_any_other_spelling_is_another_key_or_none(random: bytes, at: int, char: str) -> None:
    text = new_key_text(random)
    other = text[:at] + char + text[at + 1 :]
    if other != text:
        assert parse_key_text(other) != parse_key_text(text)


@given(st.text())
def test_any_text_can_be_asked_about(text: str) -> None:
    assert parse_key_text(text) is None
    redact_keys(text)


@pytest.mark.parametrize(
    "text", ["", "cp-", TEXT[:-1], f"{TEXT}A", f"{TEXT}\n", f" {TEXT}", TEXT.upper(), f"{TEXT}="]
)
def test_what_is_not_a_whole_key_is_none(text: str) -> None:
    assert parse_key_text(text) is None


def test_a_secret_matches_its_own_hash_alone() -> None:
    parsed = parse_key_text(TEXT)
    assert parsed is not None
    assert secret_matches(parsed.secret, hash_secret(parsed.secret))
    assert not secret_matches(parsed.secret, hash_secret(b"another"))
    assert not secret_matches(b"", hash_secret(parsed.secret))


@given(randoms, st.integers(0, 42), st.sampled_from(["{}", "Bearer {}", '"{}",', "x={}&y", "({})"]))
def test_redaction_leaves_no_secret_whole_or_cut(random: bytes, cut: int, around: str) -> None:
    text = new_key_text(random)
    key_id, secret = text[3:15], text[16:]
    shown = redact_keys(around.format(text[: len(text) - cut]))
    assert shown == around.format(f"cp-{key_id}-***")
    assert secret[: len(secret) - cut] not in shown or len(secret) - cut < 4
