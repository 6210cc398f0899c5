"""A model that keeps nothing but a state: its sequences do not depend on their length."""

import pytest

from carpool.models.config_shape import shape_from_config
from carpool.planning.engine_kind import EngineKind
from carpool.planning.kv_pool import make_pool
from carpool.planning.settings import Settings, filled

MAMBA2 = {
    "model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "state_size": 128,
    "num_heads": 128, "head_dim": 64, "n_groups": 8, "conv_kernel": 4, "vocab_size": 32768,
}  # fmt: skip


@pytest.mark.parametrize("engine", [EngineKind.VLLM, EngineKind.SGLANG, EngineKind.LLAMA_CPP])
def test_a_long_sequence_takes_what_a_short_one_does(engine: EngineKind) -> None:
    shape = shape_from_config(MAMBA2, "config.json")
    settings = filled(Settings(engine=engine, max_model_len=16_384), 2.0**34, "", None)
    pool = make_pool(shape, settings, 2.0**32)
    assert pool.bytes_per_token == 0
    assert pool.num_seqs(100) == pool.num_seqs(16_384) > 1
    assert pool.kv_tokens == pool.num_seqs(1) * 16_384
