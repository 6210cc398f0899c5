"""Models read for planning: headers and tables, never weights."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from carpool.errors import CarpoolError
from carpool.models.layer_cache import AttentionCache, LatentCache, StateCache
from carpool.models.model_source import find_model, read_model
from carpool.models.published_models import find_published, published_names
from carpool.models.safetensors import read_folder_headers

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
LAYER = {
    "self_attn.q_proj.weight": [64, 64],
    "self_attn.k_proj.weight": [32, 64],
    "self_attn.v_proj.weight": [32, 64],
    "self_attn.o_proj.weight": [64, 64],
    "mlp.gate_proj.weight": [128, 64],
    "mlp.up_proj.weight": [128, 64],
    "mlp.down_proj.weight": [64, 128],
    "input_layernorm.weight": [64],
    "post_attention_layernorm.weight": [64],
}


def tensors_of(layers: range) -> dict[str, list[int]]:
    return {f"model.layers.{n}.{name}": shape for n in layers for name, shape in LAYER.items()}


def write_safetensors(path: Path, tensors: dict[str, list[int]], cut: int = 0) -> None:
    header, offset = {}, 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(offset)
    path.write_bytes(data[: len(data) - cut])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    first = {"model.embed_tokens.weight": [256, 64], **tensors_of(range(1))}
    second = {"model.norm.weight": [64], **tensors_of(range(1, 2))}
    write_safetensors(tmp_path / "a.safetensors", first)
    write_safetensors(tmp_path / "b.safetensors", second)
    index = dict.fromkeys(first, "a.safetensors") | dict.fromkeys(second, "b.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return tmp_path


def test_headers_agree_with_the_counts_of_the_config(folder: Path) -> None:
    source = read_model(folder)
    assert source.stored is not None
    counts = source.shape.parameters
    assert source.stored.num_elements == counts.total
    assert source.stored.bytes.total == 2 * counts.total
    assert source.stored.bytes.tables == 2 * counts.embedding
    assert source.stored.bytes.replicated == 2 * counts.replicated
    assert source.stored.by_type == {"BF16": 2 * counts.total}


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    (folder / "b.safetensors").unlink()
    with pytest.raises(CarpoolError, match=r"not there: b\.safetensors; fetch them"):
        read_model(folder)


@pytest.mark.parametrize("cut", [1, 100_000])
def test_a_truncated_file_is_named(folder: Path, cut: int) -> None:
    write_safetensors(folder / "b.safetensors", {"model.norm.weight": [64_000]}, cut)
    with pytest.raises(CarpoolError, match=r"b\.safetensors: truncated"):
        read_model(folder)


@pytest.mark.parametrize("data", [b"", b"\xff" * 8, struct.pack("<Q", 4) + b"nope"])
def test_what_is_no_safetensors_file_is_named(folder: Path, data: bytes) -> None:
    (folder / "b.safetensors").write_bytes(data)
    with pytest.raises(CarpoolError, match=r"b\.safetensors"):
        read_folder_headers(folder)


def test_the_tensor_table_of_a_gguf_agrees_with_its_metadata(
    write_gguf: Callable[..., Path],
) -> None:
    source = read_model(write_gguf(quantisation="Q8_0"))
    assert source.stored is not None
    assert source.stored.num_elements == source.shape.parameters.total


def test_a_part_of_a_split_gguf_that_is_missing_is_named(
    write_gguf: Callable[..., Path],
) -> None:
    path = write_gguf("tiny-00001-of-00002.gguf")
    with pytest.raises(CarpoolError, match=r"parts are missing: tiny-00002-of-00002\.gguf"):
        read_model(path)


def test_an_architecture_that_no_gguf_reader_knows_is_refused_by_name(
    write_gguf: Callable[..., Path],
) -> None:
    with pytest.raises(CarpoolError, match="architecture 'rwkv7' is not understood"):
        read_model(write_gguf(architecture="rwkv7"))


def test_a_hub_that_cannot_be_reached_offers_what_there_is() -> None:
    with pytest.raises(CarpoolError, match=r"no model named 'a/b'.*config\.json.*--models"):
        find_model("a/b", lambda name: None)


# Parameters of model cards; from config.json, so that a wrong rule for a layer shows.
@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen3-30B-A3B", 30.53),
        ("openai/gpt-oss-120b", 116.8),
        ("deepseek-ai/DeepSeek-R1", 671.0),
        ("moonshotai/Kimi-K2-Thinking", 1026.0),
        ("zai-org/GLM-5.1", 744.0),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 46.7),
        ("ai21labs/AI21-Jamba-1.5-Mini", 51.57),
        ("nvidia/NVIDIA-Nemotron-Nano-9B-v2", 8.89),
        ("LiquidAI/LFM2-1.2B", 1.17),
        ("google/gemma-2-27b-it", 27.23),
        ("microsoft/phi-2", 2.78),
    ],
)
def test_weights_are_counted_as_model_cards_do(name: str, billions: float) -> None:
    published = find_published(name)
    assert published is not None
    assert published.shape.parameters.total / 1e9 == pytest.approx(billions, rel=0.002)


def test_the_catalogue_is_found_by_either_name() -> None:
    for name in published_names():
        assert find_published(name) is not None
        assert find_published(name.split("/")[1].upper()) is not None


def cache_of(name: str, kind: type) -> list[tuple[object, int]]:
    published = find_published(name)
    assert published is not None
    groups = [(group.cache, group.num_layers) for group in published.shape.caches]
    return [(cache, count) for cache, count in groups if isinstance(cache, kind)]


def test_mla_keeps_one_vector_for_all_heads() -> None:
    [(cache, layers)] = cache_of("deepseek-ai/DeepSeek-R1", LatentCache)
    assert isinstance(cache, LatentCache)
    assert (cache.elements_per_token(1), cache.elements_per_token(8), layers) == (576, 576, 61)


def test_windows_alternate_with_full_layers() -> None:
    kept = cache_of("google/gemma-3-12b-it", AttentionCache)
    assert {(cache.window, count) for cache, count in kept} == {(1024, 40), (None, 8)}  # type: ignore[attr-defined]


def test_states_do_not_grow() -> None:
    [(state, layers)] = cache_of("Qwen/Qwen3.6-27B", StateCache)
    assert isinstance(state, StateCache)
    assert layers == 48
    # 48 heads of 128 x 128 in float32, and three columns of a convolution in 16 bits.
    assert state.num_bytes(2) == 48 * 128 * 128 * 4 + 10_240 * 3 * 2


def test_kv_heads_are_replicated_when_there_are_too_few() -> None:
    cache = AttentionCache(num_kv_heads=2, key_dim=128, value_dim=128)
    assert [cache.elements_per_token(ranks) for ranks in (1, 2, 4)] == [512, 256, 256]
