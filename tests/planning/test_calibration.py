"""What a calibration says between its levels."""

from dataclasses import replace
from math import inf

import pytest

from carpool.planning.calibration import Calibration, CalibrationKey, MeasuredLevel


@pytest.fixture
def calibration() -> Calibration:
    """Of a machine where n requests at once take 0.2 n + 32 (0.01 + 0.002 n) seconds each."""

    def level(n: int) -> MeasuredLevel:
        tpot = 0.01 + 0.002 * n
        seconds = 0.2 * n + 32 * tpot
        return MeasuredLevel(n, 100, 0, 0.2 * n, 0.3 * n, tpot, 32 * n / seconds, n / seconds)

    return Calibration(
        key=CalibrationKey(engine="embedded", version="1", model="demo", device="CPU"),
        measured_at=0.0,
        step_fixed_s=0.01,
        step_per_seq_s=0.002,
        prefill_tokens_per_s=640.0,
        overhead_bytes=None,
        kv_tokens=None,
        max_num_seqs=6,
        outcome="resolved",
        confidence=0.8,
        tolerance_s=2.0,
        prompt_tokens=128,
        output_tokens=32,
        levels=(level(64), level(1), level(8)),
    )


def test_steps_and_prefills(calibration: Calibration) -> None:
    assert calibration.step_seconds(10) == pytest.approx(0.03)
    assert calibration.prefill_seconds(128) == pytest.approx(0.2)


def test_between_levels_times_lie_on_a_line(calibration: Calibration) -> None:
    level = calibration.level_at(32)
    assert level is not None
    assert level.tpot_s == pytest.approx(0.01 + 0.002 * 32)
    assert level.ttft_s == pytest.approx(6.4)
    assert level.tokens_per_s == pytest.approx(32 * 32 / (6.4 + 32 * 0.074))


def test_below_what_was_measured_nothing_is_said(calibration: Calibration) -> None:
    assert calibration.level_at(8) == calibration.levels[2]
    assert replace(calibration, levels=calibration.levels[2:]).level_at(7) is None
    assert replace(calibration, levels=()).level_at(8) is None


def test_above_the_highest_level_no_more_is_done_and_the_rest_waits(
    calibration: Calibration,
) -> None:
    top = calibration.levels[0]
    level = calibration.level_at(128, seats=64)
    assert level is not None
    assert level.requests_per_s == pytest.approx(top.requests_per_s)
    assert level.tpot_s == pytest.approx(top.tpot_s)
    waiting = 64 / top.requests_per_s
    assert level.ttft_s == pytest.approx(top.ttft_s + waiting)


def test_other_lengths_are_another_workload(calibration: Calibration) -> None:
    assert calibration.is_like(128, 32)
    assert calibration.is_like(131, 31)
    assert not calibration.is_like(256, 32)


def test_failures_reach_between_levels(calibration: Calibration) -> None:
    levels = (
        MeasuredLevel(1, 100, 0, 0.2, 0.3, 0.01, 60.0, 2.0),
        MeasuredLevel(9, 100, 5, 1.0, inf, 0.02, 200.0, 6.0),
    )
    level = replace(calibration, levels=levels).level_at(5)
    assert level is not None
    assert level.ttft_p99_s == inf
