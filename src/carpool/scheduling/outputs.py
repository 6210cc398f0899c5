"""What a step is asked to compute, what comes back, and what each request gets of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from carpool.scheduling.request import FinishReason, Request, WaitingReason


class ScheduledRequest(NamedTuple):
    """Compute tokens [start, start + num_tokens) of `request`.

    `is_sampling` says that this reaches the request's last token, so one more is sampled.
    """

    request: Request
    start: int
    num_tokens: int
    is_sampling: bool


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step: decodes first, then prefills. It must go back to `update` or `fail`."""

    step_id: int
    scheduled: tuple[ScheduledRequest, ...]
    num_scheduled_tokens: int
    preempted_request_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRunnerOutput:
    """One sampled token for each sampling request of the step, by request id.

    `failed` holds messages for requests that failed alone; they end with an error.
    """

    sampled_token_ids: Mapping[str, int]
    failed: Mapping[str, str] = field(default_factory=dict)


class RequestOutput(NamedTuple):
    """What one event added to one request; the last one has a `finish_reason`.

    `new_token_ids` includes a stop token, which is then the `stop_reason`.
    """

    request: Request
    request_id: str
    new_token_ids: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges of this moment and totals since the start.

    `num_waiting` includes the preempted. Blocks: used + cached + free = total, where cached
    ones are held by nobody but can still be found. Prefix-cache figures count the prompt
    tokens of first admissions that were looked up, and those found.
    """

    num_running: int
    num_waiting: int
    num_blocks: int
    num_used_blocks: int
    num_cached_blocks: int
    num_free_blocks: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    waiting_reasons: Mapping[WaitingReason, int]
