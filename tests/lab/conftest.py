"""Fixtures of the lab's tests: an executor without a model, and time that steps make pass."""

from collections.abc import Callable

import numpy as np
import pytest

from carpool.engine.core import Logits
from carpool.lab.lab_engine import LabEngine
from carpool.scheduling.config import SchedulerConfig
from carpool.scheduling.outputs import ScheduledRequest


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        # As a real clock, it never wakes up too early for a rounding error.
        self.now += seconds + 1e-9


class FakeExecutor:
    """A step takes `seconds_per_step`, and `seconds_per_token` for each of its tokens; logits
    prefer token 0."""

    vocab_size = 8

    def __init__(self, clock: FakeClock, seconds_per_step: float, seconds_per_token: float) -> None:
        self._clock = clock
        self._seconds_per_step = seconds_per_step
        self._seconds_per_token = seconds_per_token

    def execute(self, scheduled: tuple[ScheduledRequest, ...], num_logits: list[int]) -> Logits:
        num_tokens = sum(item.num_tokens for item in scheduled)
        self._clock.now += self._seconds_per_step + self._seconds_per_token * num_tokens
        logits = np.zeros((sum(num_logits), self.vocab_size), np.float32)
        logits[:, 0] = 1.0
        return logits


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def make_engine(clock: FakeClock) -> Callable[..., LabEngine]:
    """A lab engine on a fake executor; takes its times and fields of SchedulerConfig."""

    def make(
        seconds_per_token: float = 0.001, seconds_per_step: float = 0.0, **fields: object
    ) -> LabEngine:
        limits: dict[str, object] = {
            "num_blocks": 64,
            "block_size": 4,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
            "max_model_len": 256,
        }
        config = SchedulerConfig(**(limits | fields))  # type: ignore[arg-type]
        executor = FakeExecutor(clock, seconds_per_step, seconds_per_token)
        return LabEngine(executor, config, clock)

    return make
