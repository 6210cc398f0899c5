"""What the engine has done since it started: counted as it goes, read as a snapshot."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from carpool.scheduling.outputs import SchedulerStats
from carpool.scheduling.request import FinishReason
from carpool.serving.histogram import Histogram, HistogramSnapshot

# Seconds. One decode step is about 20 ms and a long prompt takes seconds.
LATENCY_BOUNDS = (
    *(0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0),
)
STEP_BOUNDS = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot. Times are in seconds; requests are counted when they end."""

    scheduler: SchedulerStats
    time_to_first_token: HistogramSnapshot
    time_per_output_token: HistogramSnapshot
    request_queue_time: HistogramSnapshot
    e2e_request_latency: HistogramSnapshot
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_finished: Mapping[FinishReason, int] = field(default_factory=dict)


class StatsRecorder:
    """Keeps the engine's totals. Written by the step loop alone; reading needs no lock.

    TTFT is from arrival to the first token. TPOT is one figure per request: the time from
    its first token to its last, over the tokens after the first.
    """

    def __init__(self) -> None:
        self._time_to_first_token = Histogram(LATENCY_BOUNDS)
        self._time_per_output_token = Histogram(STEP_BOUNDS)
        self._request_queue_time = Histogram(LATENCY_BOUNDS)
        self._e2e_request_latency = Histogram(LATENCY_BOUNDS)
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._num_finished: Counter[FinishReason] = Counter()

    def admitted(self, queue_time: float, num_prompt_tokens: int) -> None:
        """A request was scheduled for the first time."""
        self._request_queue_time.observe(queue_time)
        self._num_prompt_tokens += num_prompt_tokens

    def generated(self, num_tokens: int) -> None:
        self._num_generation_tokens += num_tokens

    def first_token(self, time_to_first_token: float) -> None:
        self._time_to_first_token.observe(time_to_first_token)

    def finished(
        self,
        reason: FinishReason,
        e2e_latency: float,
        *,
        decode_time: float = 0.0,
        num_output_tokens: int = 0,
    ) -> None:
        """`decode_time` is from the first output token to the last."""
        self._num_finished[reason] += 1
        self._e2e_request_latency.observe(e2e_latency)
        if num_output_tokens > 1:
            self._time_per_output_token.observe(decode_time / (num_output_tokens - 1))

    def snapshot(self, scheduler: SchedulerStats) -> EngineStats:
        return EngineStats(
            scheduler=scheduler,
            time_to_first_token=self._time_to_first_token.snapshot(),
            time_per_output_token=self._time_per_output_token.snapshot(),
            request_queue_time=self._request_queue_time.snapshot(),
            e2e_request_latency=self._e2e_request_latency.snapshot(),
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            num_finished=dict(self._num_finished),
        )
