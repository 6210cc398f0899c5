"""What a scheduler may hand out, and by which policies."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class BatchingPolicy(StrEnum):
    CONTINUOUS = "continuous"
    """Requests join and leave the batch at every step."""
    STATIC = "static"
    """A batch runs until its last request is done; only then the next one is formed."""


class MemoryPolicy(StrEnum):
    PAGED = "paged"
    """Blocks for the tokens that are there; more as the output grows."""
    RESERVE_MAX = "reserve_max"
    """Blocks for prompt + max_tokens - 1 from the start; nothing is ever preempted."""


class QueuePolicy(StrEnum):
    FCFS = "fcfs"
    FAIR = "fair"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Limits and policies of a scheduler; ValueError names the field that is wrong.

    Policies may be given by their values, as a command line does.

    `num_blocks` blocks of `block_size` tokens are the KV cache. A step computes at most
    `max_num_batched_tokens` tokens of at most `max_num_seqs` sequences.
    `long_prefill_token_threshold` is the share of a step that one prefill gets while
    others could use the rest (0: no such limit); what they leave over it may have.
    At most `max_skip_ahead` later requests are admitted past one whose blocks do not fit;
    after that the blocks that come free are kept for it. In the fair queue they must not be
    ahead of its person by more than the service of one request of the largest size.
    `defer_shared_prefixes` lets a request wait while a running prefill computes tokens of
    its prefix, and take them from the cache.
    `max_running_per_person` and `max_blocks_per_person` (None: no limit) are checked when a
    request is admitted; blocks are what the person's running requests hold at that time.
    `person_weights` (1.0 for those not named) and the token weights are for the fair queue.
    """

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    long_prefill_token_threshold: int = 0
    enable_prefix_cache: bool = True
    defer_shared_prefixes: bool = True
    max_skip_ahead: int = 16
    batching_policy: BatchingPolicy = BatchingPolicy.CONTINUOUS
    memory_policy: MemoryPolicy = MemoryPolicy.PAGED
    queue_policy: QueuePolicy = QueuePolicy.FCFS
    max_running_per_person: int | None = None
    max_blocks_per_person: int | None = None
    person_weights: Mapping[str, float] = field(default_factory=dict)
    prompt_token_weight: float = 1.0
    output_token_weight: float = 2.0

    def __post_init__(self) -> None:
        for name, kind in (
            ("batching_policy", BatchingPolicy),
            ("memory_policy", MemoryPolicy),
            ("queue_policy", QueuePolicy),
        ):
            object.__setattr__(self, name, kind(getattr(self, name)))
        for name in ("num_blocks", "block_size", "max_num_seqs", "max_model_len"):
            self._require_at_least(name, 1)
        for name in ("long_prefill_token_threshold", "max_skip_ahead"):
            self._require_at_least(name, 0)
        for name in ("max_running_per_person", "max_blocks_per_person"):
            if getattr(self, name) is not None:
                self._require_at_least(name, 1)
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than "
                f"max_num_seqs ({self.max_num_seqs}): every running sequence needs room for "
                f"one token in each step"
            )
        for person_id, weight in self.person_weights.items():
            if not weight > 0:
                raise ValueError(f"the weight of person {person_id!r} is {weight}, not above 0")
        if not (self.prompt_token_weight >= 0 and self.output_token_weight > 0):
            raise ValueError(
                f"token weights are prompt {self.prompt_token_weight} and output "
                f"{self.output_token_weight}; need prompt >= 0 and output > 0"
            )

    def _require_at_least(self, name: str, least: int) -> None:
        if getattr(self, name) < least:
            raise ValueError(f"{name} is {getattr(self, name)}, but must be at least {least}")

    @property
    def kv_tokens(self) -> int:
        """Tokens whose keys and values fit into the pool."""
        return self.num_blocks * self.block_size

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)
