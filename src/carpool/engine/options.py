"""What a person may decide about the engine."""

from dataclasses import dataclass
from enum import StrEnum

from carpool.scheduling.config import BatchingPolicy, MemoryPolicy, QueuePolicy

KV_CACHE_SHARE = 0.3
"""Share of the free memory that the KV cache may fill, if nobody says."""


class Weights(StrEnum):
    AUTO = "auto"
    """Whichever of the others is faster for this model on this machine; measured once."""
    COMPRESSED = "compressed"
    """As the model file has them, unpacked at every use."""
    EXPANDED = "expanded"
    """Unpacked once, into the type that is computed in: bf16, or f32 where there is no bf16."""


class Dtype(StrEnum):
    """What activations are computed in."""

    AUTO = "auto"
    BF16 = "bf16"
    F32 = "f32"


class KVCacheDtype(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    U8 = "u8"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """None stands for what fits the model and the machine.

    `kv_cache_memory` is in bytes; by default `KV_CACHE_SHARE` of the memory that is free once
    the model is loaded, and no more than `max_num_seqs` sequences of `max_model_len` tokens
    fill. `num_threads` 0 leaves the number to OpenVINO. `max_waiting` bounds the queue.
    """

    weights: Weights = Weights.AUTO
    dtype: Dtype = Dtype.AUTO
    kv_cache_dtype: KVCacheDtype = KVCacheDtype.AUTO
    kv_cache_memory: int | None = None
    num_threads: int = 0
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 256
    long_prefill_token_threshold: int | None = None
    max_waiting: int = 1024
    enable_prefix_cache: bool = True
    batching_policy: BatchingPolicy = BatchingPolicy.CONTINUOUS
    memory_policy: MemoryPolicy = MemoryPolicy.PAGED
    queue_policy: QueuePolicy = QueuePolicy.FAIR
