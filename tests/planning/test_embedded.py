"""The plan for Carpool's own engine, against what the compiled model says."""

from pathlib import Path

import openvino
import pytest

from carpool.engine.executor import Executor, ExecutorConfig
from carpool.engine.options import KVCacheDtype
from carpool.hardware.probe import has_bf16
from carpool.models.model_source import read_model
from carpool.planning.engine_kind import EngineKind
from carpool.planning.kv_pool import make_pool
from carpool.planning.plan import weights_of
from carpool.planning.settings import Settings, filled

pytestmark = pytest.mark.model


@pytest.mark.parametrize("dtype", ["f32", "u8"])
def test_a_token_takes_what_the_compiled_model_says(model_folder: Path, dtype: str) -> None:
    config = ExecutorConfig(kv_cache_dtype=KVCacheDtype(dtype))
    executor = Executor(model_folder / "openvino_model.xml", config)
    source = read_model(model_folder)
    shape = source.shape
    settings = filled(
        Settings(engine=EngineKind.EMBEDDED, kv_dtype=dtype), 2**34, "", shape.max_model_len
    )
    pool = make_pool(shape, settings, 2**30)
    assert pool.block_size == executor.block_size
    assert pool.bytes_per_token * pool.block_size == executor.bytes_per_block
    assert weights_of(source, None).bytes.total == executor.weight_bytes


def test_the_processor_is_read_as_openvino_reads_it() -> None:
    capabilities = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    assert has_bf16() == ("BF16" in capabilities)
