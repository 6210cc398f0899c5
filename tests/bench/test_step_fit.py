"""Step times out of levels whose truth is known."""

import pytest

from carpool.bench.step_fit import FitError, fit_steps
from carpool.planning.calibration import MeasuredLevel

PROMPT, OUTPUT = 128, 32
FIXED, PER_SEQ, PREFILL_RATE = 0.01, 0.002, 690.0


def level(concurrency: int, noise: float = 0.0) -> MeasuredLevel:
    """Of an engine that prefills as soon as it can: while one does, the others wait."""
    prefill = PROMPT / PREFILL_RATE
    decodes = concurrency if concurrency == 1 else 0.8 * concurrency
    step = FIXED + PER_SEQ * decodes
    seconds = concurrency * prefill + OUTPUT * step * concurrency / decodes
    rate = concurrency / seconds * (1 + noise)
    tpot = FIXED + PER_SEQ if concurrency == 1 else decodes / (rate * OUTPUT)
    ttft = prefill if concurrency == 1 else seconds - OUTPUT * tpot
    return MeasuredLevel(concurrency, 100, 0, ttft, 2 * ttft, tpot, rate * OUTPUT, rate)


def test_exact_levels_give_the_truth() -> None:
    fit = fit_steps([level(n) for n in (1, 4, 16, 64)], PROMPT, OUTPUT)
    assert fit.prefill_tokens_per_s == pytest.approx(PREFILL_RATE)
    assert fit.step_fixed_s == pytest.approx(FIXED, rel=0.01)
    assert fit.step_per_seq_s == pytest.approx(PER_SEQ, rel=0.01)


def test_noise_changes_little_of_what_follows_from_it() -> None:
    """The single figures may trade places; a request's time among 32 may not."""
    levels = [level(1), level(4, 0.03), level(16, -0.03), level(64, 0.02)]
    fit = fit_steps(levels, PROMPT, OUTPUT)

    def seconds(fixed: float, per_seq: float, rate: float) -> float:
        return 32 * PROMPT / rate + OUTPUT * (fixed + per_seq * 32)

    found = seconds(fit.step_fixed_s, fit.step_per_seq_s, fit.prefill_tokens_per_s)
    assert found == pytest.approx(seconds(FIXED, PER_SEQ, PREFILL_RATE), rel=0.06)


def test_neither_part_of_a_step_is_below_zero() -> None:
    odd = MeasuredLevel(32, 100, 0, 0.1, 0.2, 0.001, 4000.0, 125.0)
    fit = fit_steps([level(1), odd], PROMPT, OUTPUT)
    assert fit.step_fixed_s >= 0
    assert fit.step_per_seq_s >= 0


def test_without_a_request_that_ran_alone_nothing_is_known() -> None:
    with pytest.raises(FitError, match="no request that ran alone"):
        fit_steps([level(8)], PROMPT, OUTPUT)
