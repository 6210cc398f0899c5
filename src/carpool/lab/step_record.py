"""What each step computed, and how full the KV cache was when it had."""

from collections.abc import Sequence
from typing import NamedTuple

from carpool.engine.core import Logits, ModelExecutor
from carpool.scheduling.outputs import ScheduledRequest
from carpool.scheduling.request import Request
from carpool.scheduling.scheduler import Scheduler


class StepRecord(NamedTuple):
    """One step, right after its forward pass. A slot holds the keys and values of one token;
    `held_slots` are those of all blocks in use, `written_slots` those of them with a token."""

    num_running: int
    held_slots: int
    written_slots: int
    num_prompt_tokens: int


def wasted_share(steps: Sequence[StepRecord]) -> float:
    """Mean over steps of the share of the held slots that hold nothing; 0 without steps."""
    shares = [1 - step.written_slots / step.held_slots for step in steps if step.held_slots]
    return sum(shares) / len(shares) if shares else 0.0


def num_written_slots(scheduled: Sequence[ScheduledRequest], requests: Sequence[Request]) -> int:
    """Slots with a token once `scheduled` is computed; `requests` are all that may hold blocks.
    Blocks that several share count once for each."""
    written = {
        request.request_id: request.num_computed_tokens
        for request in requests
        if request.block_table
    }
    for request, start, num_tokens, _ in scheduled:
        written[request.request_id] = start + num_tokens
    return sum(written.values())


def num_prompt_tokens(scheduled: Sequence[ScheduledRequest]) -> int:
    """Prompt tokens among those of a step."""
    return sum(
        max(0, min(start + num_tokens, request.num_prompt_tokens) - start)
        for request, start, num_tokens, _ in scheduled
    )


class RecordingExecutor:
    """Runs steps on another executor and keeps a `StepRecord` of each."""

    def __init__(self, executor: ModelExecutor, scheduler: Scheduler) -> None:
        self.vocab_size = executor.vocab_size
        self.steps: list[StepRecord] = []
        self._executor = executor
        self._scheduler = scheduler
        self._requests: dict[str, Request] = {}

    def execute(self, scheduled: tuple[ScheduledRequest, ...], num_logits: list[int]) -> Logits:
        logits = self._executor.execute(scheduled, num_logits)
        self._requests |= {item.request.request_id: item.request for item in scheduled}
        stats = self._scheduler.stats()
        self.steps.append(
            StepRecord(
                stats.num_running,
                stats.num_used_blocks * self._scheduler.config.block_size,
                num_written_slots(scheduled, list(self._requests.values())),
                num_prompt_tokens(scheduled),
            )
        )
        return logits
