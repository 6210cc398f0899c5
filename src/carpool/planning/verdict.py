"""Whether an engine would start at all, and what stands in its way."""

from carpool.models.layer_cache import StateCache
from carpool.models.shape import ModelShape
from carpool.planning.coefficients import coefficients
from carpool.planning.engine_kind import EngineKind
from carpool.planning.figure import GIB
from carpool.planning.kv_pool import KVPool
from carpool.planning.memory import MemoryPlan
from carpool.planning.settings import Settings
from carpool.planning.vllm_pool import HYBRID_SINCE


def missing_devices(settings: Settings, num_devices: int) -> str | None:
    """Each rank has a device of its own: an engine asked for more ends before it loads."""
    if settings.num_ranks <= num_devices:
        return None
    are = "is" if num_devices == 1 else "are"
    return (
        f"tensor x pipeline x data parallel takes {settings.num_ranks} devices, and there {are} "
        f"{num_devices}"
    )


def start_up_trouble(
    shape: ModelShape, settings: Settings, memory: MemoryPlan, pool: KVPool
) -> str | None:
    """None if it starts. `settings` must be filled."""
    length, num_seqs = settings.max_model_len or 1, settings.max_num_seqs or 1
    if trouble := _heads(shape, settings):
        return trouble
    if settings.kv_tokens is None and memory.kv_cache.value <= 0:
        return (
            f"the weights take {memory.weights.value / GIB:.1f} GiB of a budget of "
            f"{memory.budget.value / GIB:.1f} GiB, which leaves nothing for a KV cache"
        )
    if settings.engine is EngineKind.SGLANG:
        return None if pool.kv_tokens >= 1 else "nothing is left for a KV cache"
    if settings.engine is EngineKind.LLAMA_CPP:
        return _llama_cpp(memory, pool)
    if pool.concurrency(length) < 1:
        return (
            f"one sequence of {length:,} tokens does not fit: there is room for "
            f"{pool.concurrency(length):.0%} of it"
        )
    if settings.engine is not EngineKind.VLLM:
        return None
    return _states(shape, settings, memory, pool, num_seqs) or _warm_up(
        shape, settings, memory, num_seqs
    )


def _heads(shape: ModelShape, settings: Settings) -> str | None:
    """vLLM and SGLang give each rank whole heads (vllm/config/model.py,
    verify_with_parallel_config)."""
    heads, ranks = shape.num_attention_heads, settings.tensor_parallel
    if settings.engine not in (EngineKind.VLLM, EngineKind.SGLANG) or heads % ranks == 0:
        return None
    near = [number for number in (ranks - 1, ranks + 1) if number and heads % number == 0]
    other = " or ".join(f"--tensor-parallel {number}" for number in near)
    return f"{heads} attention heads do not divide by tensor parallel {ranks}" + (
        f"; give {other}" if other else ""
    )


def _llama_cpp(memory: MemoryPlan, pool: KVPool) -> str | None:
    need = memory.weights.value + pool.num_bytes + memory.activation.value + memory.non_torch.value
    if need <= memory.total.value:
        return None
    return f"it needs {need / GIB:.1f} GiB of {memory.total.value / GIB:.1f} GiB"


def _states(
    shape: ModelShape, settings: Settings, memory: MemoryPlan, pool: KVPool, num_seqs: int
) -> str | None:
    """Each sequence has at least a block of states: vLLM refuses more sequences than blocks,
    and older versions allocate them beside the budget."""
    states = [group for group in shape.caches if isinstance(group.cache, StateCache)]
    if not states:
        return None
    if pool.hybrid is not None and settings.version is not None and settings.version >= (0, 17):
        if pool.hybrid.num_blocks < num_seqs:
            return f"{num_seqs} sequences, but blocks for {pool.hybrid.num_blocks} states"
        return None
    if settings.version is not None and settings.version < HYBRID_SINCE:
        size = sum(
            group.num_layers * group.cache.num_bytes(2.0, settings.tensor_parallel)
            for group in states
            if isinstance(group.cache, StateCache)
        )
        spare = memory.total.value - memory.budget.value
        if num_seqs * size > spare:
            return f"states of {num_seqs} sequences take {num_seqs * size / GIB:.1f} GiB"
    return None


WARM_UP_COPIES = 6.65
"""Of the logits in float32, when the sampler is tried with sorting (fitted to three reports)."""


def _warm_up(
    shape: ModelShape, settings: Settings, memory: MemoryPlan, num_seqs: int
) -> str | None:
    """After the KV cache has been made, vLLM captures graphs and tries its sampler on
    `num_seqs` rows, with what the budget has left over."""
    spare = memory.total.value - memory.budget.value + memory.activation.value
    logits = WARM_UP_COPIES * 4.0 * num_seqs * shape.vocab_size
    is_counted = coefficients(settings.engine, settings.version).graphs_counted
    need = logits + (0.0 if is_counted else memory.graphs.value)
    if need <= spare:
        return None
    return (
        f"graphs and sampling for {num_seqs} sequences need {need / GIB:.1f} GiB, "
        f"{spare / GIB:.1f} GiB are left"
    )
