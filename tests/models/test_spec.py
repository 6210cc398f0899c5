"""Model specs from GGUF metadata and from config.json."""

from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.models.gguf import GGUFError, read_gguf
from carpool.models.spec import ModelSpec, UnsupportedModel, spec_from_config, spec_from_gguf

Write = Callable[..., Path]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}


def test_spec_of_a_gguf(write_gguf: Write) -> None:
    spec = spec_from_gguf(read_gguf(write_gguf(quantisation="Q8_0")))
    matrices = 256 * (96 + 256 + 128 + 128 + 256 + 3 * 256)
    assert spec == ModelSpec(
        architecture="llama",
        num_layers=1,
        hidden_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=96,
        max_model_len=512,
        quantization="Q8_0",
        num_parameters=matrices + 3 * 256,
        weight_bytes=matrices // 32 * 34 + 3 * 256 * 4,
    )


def test_head_dim_may_differ_from_hidden_over_heads(write_gguf: Write) -> None:
    path = write_gguf(architecture="qwen3", **{"qwen3.attention.key_length": 128})
    assert spec_from_gguf(read_gguf(path)).head_dim == 128


def test_unknown_architecture_is_named_with_what_works(write_gguf: Write) -> None:
    path = write_gguf(architecture="gemma3")
    with pytest.raises(UnsupportedModel, match=r"'gemma3'.*llama, qwen2, qwen3"):
        spec_from_gguf(read_gguf(path))


@pytest.mark.parametrize("quantisation", ["Q5_K", "IQ4_XS", "BF16", "MXFP4"])
def test_unknown_quantization_is_named_with_what_works(
    write_gguf: Write, quantisation: str
) -> None:
    path = write_gguf(quantisation=quantisation)
    with pytest.raises(UnsupportedModel, match=rf"{quantisation} .*F16, Q4_0, Q4_1, Q4_K"):
        spec_from_gguf(read_gguf(path))


@pytest.mark.parametrize(
    ("metadata", "error", "message"),
    [
        ({"llama.expert_count": 8}, UnsupportedModel, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, UnsupportedModel, "scaled rotary embeddings"),
        ({"split.count": 3}, UnsupportedModel, "llama-gguf-split --merge"),
        ({"llama.block_count": "many"}, GGUFError, "llama.block_count is 'many'"),
        ({"llama.attention.head_count": 0}, GGUFError, "head_count is 0"),
    ],
)
def test_metadata_that_the_engine_cannot_use(
    write_gguf: Write, metadata: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        spec_from_gguf(read_gguf(write_gguf(**metadata)))


def test_spec_of_a_config_counts_the_parameters_of_smollm2() -> None:
    spec = spec_from_config(CONFIG, weight_bytes=269_030_016, quantization="FP16", where="c")
    assert spec.num_parameters == 134_515_008
    assert (spec.head_dim, spec.max_model_len) == (64, 8192)


def test_config_of_an_unknown_model_type() -> None:
    with pytest.raises(UnsupportedModel, match=r"'mamba'.*llama, mistral, qwen2, qwen3"):
        spec_from_config(CONFIG | {"model_type": "mamba"}, 1, "FP16", where="config.json")


@pytest.mark.parametrize("value", [None, 0, -1, True, "576", 1.5])
def test_config_with_an_impossible_size(value: object) -> None:
    with pytest.raises(UnsupportedModel, match="hidden_size"):
        spec_from_config(CONFIG | {"hidden_size": value}, 1, "FP16", where="config.json")
