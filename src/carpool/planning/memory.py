"""Where a device's memory goes when an engine has started: one rank, in bytes."""

from dataclasses import dataclass

from carpool.models.layer_cache import AttentionCache
from carpool.models.shape import ModelShape
from carpool.models.weight_format import WeightBytes, WeightFormat, dtype_bits
from carpool.planning.coefficients import Coefficients, coefficients
from carpool.planning.engine_kind import EngineKind
from carpool.planning.figure import GIB, Figure, Known
from carpool.planning.settings import Settings


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the whole model, and how they are known."""

    bytes: WeightBytes
    format: WeightFormat
    known: Known


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes on one rank. `budget` is what the engine may take of `total`; `kv_cache` is what
    is left of it, below zero if the model does not fit; `graphs` come on top of the budget
    unless the engine counts them."""

    total: Figure
    budget: Figure
    weights: Figure
    activation: Figure
    non_torch: Figure
    graphs: Figure
    kv_cache: Figure


def plan_memory(
    shape: ModelShape,
    weights: Weights,
    settings: Settings,
    total: Figure,
    known: Coefficients | None = None,
    overhead_bytes: int | None = None,
) -> MemoryPlan:
    """`settings` must be filled. `total` is the memory of one device as the engine sees it;
    `known` replaces the engine's own coefficients, and `overhead_bytes`, which were measured,
    what would be fitted of activations, graphs and the engine itself."""
    known = known or coefficients(settings.engine, settings.version)
    own = rank_weights(weights, shape, settings)
    peak = activation_parts(shape, weights.format, settings).peak(known)
    activation = Figure.about(peak, 0.15, Known.FITTED)
    graphs = _graphs(shape, settings, known)
    non_torch = _non_torch(settings, known)
    if overhead_bytes is not None:
        activation = graphs = Figure.exact(0.0, Known.MEASURED)
        non_torch = Figure.about(overhead_bytes, 0.05, Known.MEASURED)
    budget = total.scaled(settings.memory_share or 1.0)
    kv_cache = _kv_cache(total, budget, own, activation, non_torch, graphs, settings, known)
    return MemoryPlan(total, budget, own, activation, non_torch, graphs, kv_cache)


def _kv_cache(
    total: Figure,
    budget: Figure,
    weights: Figure,
    activation: Figure,
    non_torch: Figure,
    graphs: Figure,
    settings: Settings,
    known: Coefficients,
) -> Figure:
    if settings.kv_bytes is not None:
        return Figure.exact(settings.kv_bytes, Known.PUBLISHED)
    if settings.engine is EngineKind.SGLANG:
        # The static share is of what was free before loading; activations take the rest.
        free = total.less(non_torch)
        return free.scaled(settings.memory_share or 1.0).less(weights)
    if settings.engine is EngineKind.EMBEDDED:
        return (
            total.less(weights)
            .less(activation)
            .less(non_torch)
            .scaled(settings.memory_share or 1.0)
        )
    left = budget.less(weights).less(activation).less(non_torch)
    return left.less(graphs) if known.graphs_counted else left


def rank_weights(weights: Weights, shape: ModelShape, settings: Settings) -> Figure:
    """Of the fullest rank: matrices and tables are split over tensor-parallel ranks, layers
    over pipeline stages, of which the first or the last has a table."""
    tensor, pipeline = settings.tensor_parallel, settings.pipeline_parallel
    parts = weights.bytes
    spread_over = settings.expert_parallel or tensor
    split = 1 if settings.data_parallel_attention else tensor
    layers = parts.dense / split + parts.experts / spread_over + parts.replicated + parts.latent
    tables = parts.tables / split
    if pipeline > 1:
        layers = layers * -(-shape.num_layers // pipeline) / shape.num_layers
        tables = tables / 2 if shape.parameters.lm_head else tables
    draft = 0.0
    if settings.num_draft_tokens and shape.num_draft_layers:
        layer = (shape.parameters.dense + shape.parameters.experts) / shape.num_layers
        draft = shape.num_draft_layers * layer * weights.format.bits / 8 / tensor
    total = layers + tables + parts.vision / tensor + draft + _adapter(shape, settings)
    spread = 0.0 if weights.known is Known.MEASURED else 0.02
    return Figure.about(max(0.0, total - settings.host_offload), spread, weights.known)


def _adapter(shape: ModelShape, settings: Settings) -> float:
    """Two 16-bit matrices of the adapter's rank beside each matrix of a dense layer."""
    hidden, heads = shape.hidden_size, shape.num_attention_heads * shape.head_dim
    kept = [group.cache for group in shape.caches if isinstance(group.cache, AttentionCache)]
    key_value = sum(cache.num_kv_heads * cache.key_dim for cache in kept) / max(1, len(kept))
    attention = 2 * (hidden + heads) + 2 * (hidden + key_value)
    mlp = 3 * (hidden + shape.intermediate_size)
    return 2.0 * settings.lora_rank * shape.num_layers * (attention + mlp)


@dataclass(frozen=True, slots=True)
class ActivationParts:
    """What may be alive at the peak of a trial run: bytes of one copy each, see `Coefficients`."""

    logits: float
    hidden: float
    forward: float
    scores: float
    encoder: float
    moe_workspace: float

    def peak(self, known: Coefficients) -> float:
        """The sampler's logits, the widest MLP or the encoder, whichever is most. Fitted:
        benchmarks/fit_planner.py."""
        sampler = known.logits * self.logits + known.hidden * self.hidden
        forward = known.forward * self.forward + self.scores
        return max(sampler, forward, self.encoder) + known.moe_workspace * self.moe_workspace


def activation_parts(
    shape: ModelShape, format: WeightFormat, settings: Settings
) -> ActivationParts:
    """`settings` must be filled."""
    tokens = settings.max_num_batched_tokens or 0
    element = dtype_bits(shape.dtype) / 8
    hidden = tokens * shape.hidden_size * element
    mlp = tokens * shape.intermediate_size / settings.tensor_parallel * element
    rows = settings.max_num_seqs or 1
    if settings.engine in (EngineKind.LLAMA_CPP, EngineKind.EMBEDDED):
        rows = tokens
    return ActivationParts(
        logits=rows * shape.vocab_size * 4,
        hidden=hidden,
        forward=mlp + hidden,
        scores=_attention_scores(shape, settings),
        encoder=_encoder(shape, settings),
        moe_workspace=_moe_workspace(shape, format, settings),
    )


LARGE_PICTURES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Models that take pictures of up to 16,384 tokens, with which vLLM tries their encoder."""
PICTURE_GIB = 2.2


def _encoder(shape: ModelShape, settings: Settings) -> float:
    """The peak of a vision tower in the trial run (since vLLM 0.8)."""
    if settings.engine is not EngineKind.VLLM or shape.model_type not in LARGE_PICTURES:
        return 0.0
    is_tried = settings.version is None or settings.version >= (0, 8)
    return PICTURE_GIB * GIB if is_tried else 0.0


def _attention_scores(shape: ModelShape, settings: Settings) -> float:
    """llama.cpp without flash attention keeps a score for each head, token and cell."""
    if settings.engine is not EngineKind.LLAMA_CPP or settings.flash_attention:
        return 0.0
    cells = settings.kv_tokens or settings.max_model_len or 0
    return 4.0 * shape.num_attention_heads * (settings.max_num_batched_tokens or 0) * cells


def _moe_workspace(shape: ModelShape, format: WeightFormat, settings: Settings) -> float:
    """Two buffers of fused experts, one row per token and expert it is routed to."""
    if shape.experts is None or format.has_fp4_kernels:
        return 0.0
    width = shape.experts.intermediate_size / settings.tensor_parallel
    rows = (settings.max_num_batched_tokens or 0) * shape.experts.num_per_token
    hidden = shape.hidden_size
    return rows * (max(2 * width, hidden) + max(width, hidden)) * 2


def _non_torch(settings: Settings, known: Coefficients) -> Figure:
    if settings.tensor_parallel > 1:
        size = known.non_torch_parallel_gib
        if not settings.custom_all_reduce:
            size = min(size, known.non_torch_gib + NCCL_GIB)
        return Figure.about(size * GIB, 0.3, Known.FITTED)
    return Figure.about(known.non_torch_gib * GIB, 0.5, Known.FITTED)


NCCL_GIB = 1.1
"""Buffers of a communicator alone, without those of vLLM's own all-reduce."""


def _graphs(shape: ModelShape, settings: Settings, known: Coefficients) -> Figure:
    """One graph per batch size up to 512 sequences; experts add to each."""
    if settings.enforce_eager:
        return Figure.exact(0.0, Known.PUBLISHED)
    largest = min(512, 2 * (settings.max_num_seqs or 1))
    size = known.graphs_gib * (0.3 + 0.7 * largest / 512) * (1.8 if shape.experts else 1.0)
    return Figure.about(size * GIB, 0.5, Known.FITTED)
