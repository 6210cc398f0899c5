"""One request: its tokens, how many of them are computed, and where their KV lives."""

from collections.abc import Iterable
from enum import StrEnum

from carpool.scheduling.prefix_cache import PrefixKey


class FinishReason(StrEnum):
    """Why a request ended; the values are OpenAI's where OpenAI has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class RequestStatus(StrEnum):
    """Where a request stands. WAITING -> RUNNING <-> PREEMPTED, then one of the finished."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED_STOPPED = "finished_stopped"
    FINISHED_LENGTH = "finished_length"
    FINISHED_ABORTED = "finished_aborted"
    FINISHED_ERROR = "finished_error"
    REJECTED = "rejected"


class WaitingReason(StrEnum):
    """What a request that is not running waits for; one reason at a time."""

    QUEUED = "queued"
    """Others stand before it; it has not been looked at in the last step."""
    SEATS = "seats"
    """`max_num_seqs` sequences are running."""
    TOKEN_BUDGET = "token_budget"  # noqa: S105
    """The step's `max_num_batched_tokens` are spoken for."""
    KV_BLOCKS = "kv_blocks"
    """Its KV blocks do not fit beside those in use."""
    PERSON_RUNNING_CAP = "person_running_cap"
    """Its person has `max_running_per_person` sequences running."""
    PERSON_BLOCK_CAP = "person_block_cap"
    """Its person's KV blocks and its own would exceed `max_blocks_per_person`."""
    FAIR_SHARE = "fair_share"
    """Free blocks are kept for a person who has had less and whose request does not fit yet."""
    SHARED_PREFIX = "shared_prefix"
    """A running prefill is computing tokens of its prefix; it will take them from the cache."""
    PREEMPTION = "preemption"
    """It lost its blocks, or others did in this step; the earlier ones come back first."""
    BATCH = "batch"
    """Static batching: the batch before it is not finished."""


FINISHED_STATUS = {
    FinishReason.STOP: RequestStatus.FINISHED_STOPPED,
    FinishReason.LENGTH: RequestStatus.FINISHED_LENGTH,
    FinishReason.ABORT: RequestStatus.FINISHED_ABORTED,
    FinishReason.ERROR: RequestStatus.FINISHED_ERROR,
}


class Request:
    """A prompt on its way through the scheduler, which alone modifies it.

    `all_token_ids` is the prompt and then the output. `num_computed_tokens` counts the
    leading tokens whose keys and values are in the blocks of `block_table`; it catches up
    with `num_tokens`, and when it does, one token is sampled. `num_cached_tokens` is the
    prefix hit at the first admission. `max_tokens`, `min_tokens` count output tokens; a
    token of `stop_token_ids` ends the request once it has `min_tokens`.
    `skip_prefix_cache` computes the whole prompt (prompt logprobs need every position).
    Times are of whatever clock the caller passes to the scheduler; `arrival_time` is when it
    was added unless given, and `finished_time` stays None when an abort ended the request.
    """

    __slots__ = (
        "admission_seq",
        "all_token_ids",
        "arrival_time",
        "block_table",
        "finish_reason",
        "finished_time",
        "first_scheduled_time",
        "first_token_time",
        "max_tokens",
        "min_tokens",
        "namespace",
        "num_cached_tokens",
        "num_charged_tokens",
        "num_computed_tokens",
        "num_passed_over",
        "num_preemptions",
        "num_prompt_tokens",
        "num_registered_blocks",
        "person_id",
        "prefix_keys",
        "request_id",
        "skip_prefix_cache",
        "status",
        "stop_token_ids",
        "waiting_reason",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Iterable[int],
        *,
        max_tokens: int,
        min_tokens: int = 0,
        stop_token_ids: frozenset[int] = frozenset(),
        person_id: str = "",
        namespace: str = "",
        skip_prefix_cache: bool = False,
        arrival_time: float | None = None,
    ) -> None:
        self.request_id = request_id
        self.all_token_ids = list(prompt_token_ids)
        self.num_prompt_tokens = len(self.all_token_ids)
        self.max_tokens = max_tokens
        self.min_tokens = min_tokens
        self.stop_token_ids = stop_token_ids
        self.person_id = person_id
        self.namespace = namespace
        self.skip_prefix_cache = skip_prefix_cache
        self.arrival_time = arrival_time

        self.status = RequestStatus.WAITING
        self.waiting_reason: WaitingReason | None = None
        self.finish_reason: FinishReason | None = None
        self.first_scheduled_time: float | None = None
        self.first_token_time: float | None = None
        self.finished_time: float | None = None
        self.admission_seq = -1
        self.num_preemptions = 0
        self.num_passed_over = 0

        self.block_table: list[int] = []
        self.num_computed_tokens = 0
        self.num_cached_tokens = 0
        self.num_charged_tokens = 0
        self.prefix_keys: list[PrefixKey] = []
        self.num_registered_blocks = 0

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def max_kv_tokens(self) -> int:
        """KV slots it can ever need: the last sampled token is never fed back."""
        return self.num_prompt_tokens + self.max_tokens - 1

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self.status = FINISHED_STATUS[reason]
        self.waiting_reason = None

    def __repr__(self) -> str:
        return (
            f"Request({self.request_id!r}, {self.status.value}, "
            f"{self.num_computed_tokens}/{self.num_tokens} computed, "
            f"{self.num_output_tokens}/{self.max_tokens} output)"
        )
