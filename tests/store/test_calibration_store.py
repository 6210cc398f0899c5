"""Calibrations in a real database."""

from dataclasses import replace
from math import inf

import pytest

from carpool.planning.calibration import Calibration, CalibrationKey, MeasuredLevel
from carpool.store.calibration_store import CalibrationStore
from carpool.store.database import Database
from carpool.store.errors import StoreError

KEY = CalibrationKey(
    engine="embedded", version="2026.4", model="demo", device="EPYC, 2 CPUs", flags="--threads=2"
)
ONE = Calibration(
    key=KEY,
    measured_at=1_800_000_000.0,
    step_fixed_s=0.01,
    step_per_seq_s=0.002,
    prefill_tokens_per_s=690.0,
    overhead_bytes=123_456_789_012,
    kv_tokens=100_000,
    max_num_seqs=17,
    outcome="resolved",
    confidence=0.82,
    tolerance_s=2.0,
    prompt_tokens=128,
    output_tokens=32,
    levels=(
        MeasuredLevel(1, 20, 0, 0.2, 0.25, 0.012, 60.0, 2.0),
        MeasuredLevel(64, 100, 3, 9.0, inf, 0.3, 130.0, 4.0),
    ),
)


@pytest.fixture
def store(database: Database) -> CalibrationStore:
    return CalibrationStore(database)


def test_what_was_measured_comes_back_whole(store: CalibrationStore) -> None:
    store.save(ONE)
    assert store.newest(engine="embedded", model="demo") == ONE
    assert store.newest(model="demo", flags="") is None
    assert store.newest(model="other") is None


def test_a_new_one_replaces_the_one_with_its_key_and_no_other(store: CalibrationStore) -> None:
    other = replace(ONE, key=replace(KEY, flags=""), measured_at=ONE.measured_at - 5)
    again = replace(ONE, measured_at=ONE.measured_at + 60, max_num_seqs=18)
    for each in (ONE, other, again):
        store.save(each)
    assert store.all() == [again, other]
    assert store.newest(model="demo") == again


def test_applying_is_a_step_of_its_own(store: CalibrationStore) -> None:
    store.save(ONE)
    store.apply(KEY)
    assert store.newest(model="demo") == replace(ONE, is_applied=True)
    store.apply(KEY, is_applied=False)
    assert store.newest(model="demo") == ONE
    store.apply(KEY)
    store.save(ONE)
    assert store.newest(model="demo") == ONE


def test_what_was_never_measured_cannot_be_applied(store: CalibrationStore) -> None:
    with pytest.raises(StoreError, match="no calibration of demo on EPYC, 2 CPUs"):
        store.apply(KEY)
