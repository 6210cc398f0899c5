"""The engine's core in a loop of its own, with a stopwatch."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from carpool.engine.core import EngineCore, ModelExecutor, TokenOutput
from carpool.engine.generation import GenerationRequest
from carpool.engine.sampling_params import SamplingParams
from carpool.errors import CarpoolError
from carpool.lab.step_record import RecordingExecutor, StepRecord
from carpool.lab.workload import SyntheticRequest
from carpool.scheduling.config import SchedulerConfig
from carpool.scheduling.rejection import RequestRejected
from carpool.scheduling.request import FinishReason
from carpool.scheduling.scheduler import Scheduler

Progress = Callable[[int, int], None]
"""How much is done, of how much."""


class LabError(CarpoolError):
    """An experiment cannot be carried out with this model or on this machine."""


@dataclass(slots=True)
class Timing:
    """When a request was asked, got its first token and ended, in seconds of the lab's clock.
    The last two are meaningless until they are reached."""

    request: SyntheticRequest
    asked_at: float
    first_token_at: float = 0.0
    finished_at: float = 0.0
    token_ids: list[int] = field(default_factory=list)

    @property
    def latency(self) -> float:
        return self.finished_at - self.asked_at

    @property
    def ttft(self) -> float:
        return self.first_token_at - self.asked_at


class LabEngine:
    """An engine core with a scheduler of its own, over an executor that others use, too:
    never at the same time, and none of them leaves requests behind.

    An answer ends after its request's `num_output_tokens`, the way a stop string ends it.
    """

    def __init__(
        self,
        executor: ModelExecutor,
        config: SchedulerConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        scheduler = Scheduler(config)
        self._recording = RecordingExecutor(executor, scheduler)
        self._core = EngineCore(self._recording, scheduler, clock=clock)
        self._running: dict[str, Timing] = {}
        self.clock = clock

    @property
    def steps(self) -> Sequence[StepRecord]:
        return self._recording.steps

    @property
    def num_preemptions(self) -> int:
        return self._core.scheduler.stats().num_preemptions

    @property
    def is_busy(self) -> bool:
        return self._core.has_unfinished

    def ask(self, request: SyntheticRequest) -> Timing:
        """Queue a request; its timing fills up as steps run. Raises LabError if the model's
        context or the KV cache is too small for it."""
        sampling = SamplingParams(max_tokens=request.max_tokens, temperature=0.0, ignore_eos=True)
        try:
            self._core.add(
                GenerationRequest(
                    request_id=request.request_id,
                    prompt_token_ids=request.prompt_token_ids,
                    sampling=sampling,
                )
            )
        except RequestRejected as error:
            raise LabError(f"this model is too small for the experiment: {error}") from error
        timing = self._running[request.request_id] = Timing(request, self.clock())
        return timing

    def step(self) -> list[Timing]:
        """Run one step; the requests that it ended. Raises LabError if the model fails."""
        outputs = self._core.step()
        now = self.clock()
        return [self._running.pop(each.request_id) for each in outputs if self._book(each, now)]

    def _book(self, output: TokenOutput, now: float) -> bool:
        """Note what a request got; whether it has ended."""
        if output.error is not None:
            raise LabError(f"the engine failed: {output.error}")
        timing = self._running[output.request_id]
        if not timing.token_ids:
            timing.first_token_at = now
        timing.token_ids += output.token_ids
        has_ended = len(timing.token_ids) >= timing.request.num_output_tokens
        if has_ended:
            timing.finished_at = now
            # Nothing happens if its max_tokens ended it already.
            self._core.abort(output.request_id, FinishReason.STOP)
        return has_ended


def answer_all(
    engine: LabEngine, requests: Sequence[SyntheticRequest], progress: Progress
) -> list[Timing]:
    """Ask all at once and run until all have ended; timings in the order of `requests`."""
    timings = [engine.ask(request) for request in requests]
    num_finished = 0
    while engine.is_busy:
        num_finished += len(engine.step())
        progress(num_finished, len(requests))
    return timings


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the two nearest of `values`, which must not be empty."""
    return float(np.percentile(list(values), percent))
