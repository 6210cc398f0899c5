"""What an engine is started with, defaults filled in as the engine would."""

from dataclasses import dataclass, replace

from carpool.planning.engine_kind import EngineKind, Version
from carpool.planning.errors import PlanError, require_positive
from carpool.planning.figure import GIB

LARGE_GPU_GIB = 70
"""From here on vLLM starts with more sequences and a longer batch (not on the A100)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """None is the engine's default, see `filled`. Lengths are in tokens.

    memory_share: of the device's memory, weights included (vLLM's gpu_memory_utilization,
    SGLang's mem_fraction_static, the whole device for llama.cpp, of the free memory for the
    embedded engine's cache). num_slots of llama.cpp is `max_num_seqs`, its ubatch is
    `max_num_batched_tokens`.
    """

    engine: EngineKind
    version: Version | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    memory_share: float | None = None
    kv_dtype: str = "auto"
    """Of keys and values, or of each as "q8_0/q4_0"."""
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    """Replicas of the whole engine, each on devices of its own."""
    expert_parallel: int | None = None
    """Ranks over which experts are spread; None for those of tensor parallelism."""
    context_parallel: int = 1
    """Ranks that divide the tokens of a sequence among them (vLLM's decode context parallel)."""
    custom_all_reduce: bool = True
    """vLLM's own all-reduce, which has buffers of its own."""
    enforce_eager: bool = False
    prefix_caching: bool = True
    data_parallel_attention: bool = False
    """Each rank has sequences of its own, and all matrices but the experts (SGLang)."""
    lora_rank: int = 0
    """Of the adapter that vLLM makes room for; 0 for none."""
    num_draft_tokens: int = 0
    host_offload: float = 0.0
    """Bytes of each rank's weights that stay in the host's memory."""
    latent_cache: bool = True
    """False where an engine keeps the keys and values of all heads of an MLA model."""
    flash_attention: bool = True
    kv_bytes: float | None = None
    """A KV cache of that size, whatever else there is (--kv-cache-memory)."""
    kv_tokens: int | None = None
    """A pool of that many tokens, where the engine is told so (llama.cpp's n_ctx, SGLang's
    max_total_tokens)."""

    def __post_init__(self) -> None:
        for name in (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "memory_share",
            "tensor_parallel",
            "pipeline_parallel",
            "data_parallel",
            "expert_parallel",
            "kv_bytes",
            "kv_tokens",
        ):
            require_positive(name, getattr(self, name))
        if self.memory_share is not None and self.memory_share > 1:
            raise PlanError(
                f"memory_share is {self.memory_share:g}; it is a share of the memory, at most 1"
            )

    @property
    def num_ranks(self) -> int:
        """Devices that all replicas together take."""
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel


def filled(settings: Settings, memory_bytes: float, device: str, model_len: int | None) -> Settings:
    """The same with the engine's own defaults for this device in place of None.

    `model_len` is the model's longest context.
    """
    length = settings.max_model_len or model_len or 8192
    if settings.engine is EngineKind.VLLM:
        num_seqs, batch, share = _vllm_defaults(settings.version, memory_bytes, device, length)
    elif settings.engine is EngineKind.SGLANG:
        # https://docs.sglang.ai/advanced_features/server_arguments.html
        num_seqs, batch, share = 128, 8192 if memory_bytes > 60 * GIB else 2048, 0.88
    elif settings.engine is EngineKind.LLAMA_CPP:
        num_seqs, batch, share = 4, 512, 1.0
    else:
        num_seqs, batch, share = 64, 256, 0.3
    return replace(
        settings,
        max_model_len=length,
        max_num_seqs=settings.max_num_seqs or num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens or batch,
        memory_share=settings.memory_share or share,
    )


def _vllm_defaults(
    version: Version | None, memory_bytes: float, device: str, max_model_len: int
) -> tuple[int, int, float]:
    """vllm/engine/arg_utils.py: sequences, tokens of a batch, share of the memory."""
    share = 0.9 if version is not None and version < (0, 20) else 0.92
    if version is None:
        share = 0.9
    if version is not None and version < (0, 8):
        # Without chunked prefill, a batch takes the longest prompt; with it, 512 tokens.
        return 256, 512 if max_model_len > 32768 else max(2048, max_model_len), share
    if memory_bytes >= LARGE_GPU_GIB * GIB and "A100" not in device.upper():
        return (1024 if version is None or version >= (0, 8, 5) else 256), 8192, share
    return 256, 2048, share
