"""What must hold of every plan, whatever the numbers."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.models.published_models import find_published, published_names
from carpool.models.shape import ModelShape
from carpool.models.weight_format import FORMATS, weight_bytes
from carpool.planning.engine_kind import EngineKind
from carpool.planning.errors import PlanError
from carpool.planning.figure import GIB, Figure, Known
from carpool.planning.kv_pool import KVPool, make_pool
from carpool.planning.memory import Weights, plan_memory
from carpool.planning.settings import Settings, filled

shapes = st.sampled_from(published_names()).map(lambda name: find_published(name).shape)  # type: ignore[union-attr]
engines = st.sampled_from(list(EngineKind))
lengths = st.integers(1, 200_000)
sizes = st.floats(0.5, 700).map(lambda gib: gib * GIB)


def pool(shape: ModelShape, engine: EngineKind, num_bytes: float, **settings: object) -> KVPool:
    asked = Settings(engine=engine, **settings)  # type: ignore[arg-type]
    return make_pool(shape, filled(asked, 80 * GIB, "H100", shape.max_model_len), num_bytes)


@given(shapes, engines, sizes, lengths, lengths)
def test_longer_contexts_never_give_more_sequences(
    shape: ModelShape, engine: EngineKind, num_bytes: float, one: int, other: int
) -> None:
    made = pool(shape, engine, num_bytes)
    short, long = sorted((one, other))
    assert made.num_seqs(long) <= made.num_seqs(short)


@given(shapes, engines, sizes, sizes, lengths)
def test_more_memory_never_gives_fewer_sequences(
    shape: ModelShape, engine: EngineKind, one: float, other: float, length: int
) -> None:
    small, large = sorted((one, other))
    fewer, more = pool(shape, engine, small), pool(shape, engine, large)
    assert fewer.num_seqs(length) <= more.num_seqs(length)
    assert fewer.kv_tokens <= more.kv_tokens


@given(shapes, st.sampled_from([EngineKind.VLLM, EngineKind.SGLANG]), sizes, lengths)
def test_an_8_bit_cache_never_holds_less(
    shape: ModelShape, engine: EngineKind, num_bytes: float, length: int
) -> None:
    full, half = pool(shape, engine, num_bytes), pool(shape, engine, num_bytes, kv_dtype="fp8")
    # Pages that are padded to a state's size may lose a block to rounding.
    assert half.concurrency(length) >= 0.9 * full.concurrency(length) - 1


@given(shapes, sizes, st.sampled_from([1, 2, 4, 8]))
def test_sequences_that_fit_take_no_more_than_there_is(
    shape: ModelShape, num_bytes: float, tensor_parallel: int
) -> None:
    made = pool(shape, EngineKind.VLLM, num_bytes, tensor_parallel=tensor_parallel)
    if made.hybrid is not None:
        assert made.hybrid.num_blocks * made.hybrid.bytes_per_block <= num_bytes * (1 + 1e-9)
        return
    length = shape.max_model_len or 4096
    assert made.num_seqs(length) * made.demand.of_sequence(length) <= num_bytes * (1 + 1e-9)


@given(shapes, st.sampled_from(list(FORMATS.values())), st.sampled_from([1, 2, 4, 8]))
def test_parts_of_memory_add_up_to_the_budget(
    shape: ModelShape, format: object, tensor_parallel: int
) -> None:
    sizes = weight_bytes(shape.parameters, format, shape.dtype)  # type: ignore[arg-type]
    weights = Weights(sizes, format, Known.PUBLISHED)  # type: ignore[arg-type]
    asked = Settings(engine=EngineKind.VLLM, version=(0, 19, 0), tensor_parallel=tensor_parallel)
    settings = filled(asked, 80 * GIB, "H100", shape.max_model_len)
    memory = plan_memory(shape, weights, settings, Figure.exact(80 * GIB, Known.DRIVER))
    parts = memory.weights + memory.activation + memory.non_torch + memory.kv_cache
    assert parts.value == pytest.approx(memory.budget.value)
    assert memory.kv_cache.low <= memory.kv_cache.value <= memory.kv_cache.high


@given(shapes)
def test_tensor_parallel_ranks_never_hold_more(shape: ModelShape) -> None:
    weights = Weights(
        weight_bytes(shape.parameters, FORMATS["bf16"], shape.dtype),
        FORMATS["bf16"],
        Known.PUBLISHED,
    )
    settings = filled(Settings(engine=EngineKind.VLLM), 80 * GIB, "H100", shape.max_model_len)
    total = Figure.exact(80 * GIB, Known.DRIVER)
    one = plan_memory(shape, weights, settings, total)
    two = plan_memory(shape, weights, replace(settings, tensor_parallel=2), total)
    assert two.weights.value <= one.weights.value


@pytest.mark.parametrize(
    "field",
    ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "memory_share", "tensor_parallel"],
)
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_below_one_are_refused_by_name(field: str, value: int) -> None:
    with pytest.raises(PlanError, match=rf"{field} is {value}; it must be above 0"):
        Settings(engine=EngineKind.VLLM, **{field: value})  # type: ignore[arg-type]


def test_a_share_above_one_is_refused() -> None:
    with pytest.raises(PlanError, match=r"memory_share is 1\.5; it is a share"):
        Settings(engine=EngineKind.VLLM, memory_share=1.5)
