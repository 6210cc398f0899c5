"""Fixtures for all tests: the demo model, a model cache of its own, tiny model files."""

import json
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from carpool.engine.resolve import resolve
from carpool.models.cache import ModelCache
from carpool.models.ggml import GGML_TYPES
from carpool.models.resolved import IR_FILES, ResolvedModel

settings.register_profile("quick", max_examples=30, deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

TYPE_IDS = {kind.name: number for number, kind in GGML_TYPES.items()}


@pytest.fixture(scope="session")
def resolved_model() -> ResolvedModel:
    """The demo model, converted, from the real model cache (fetched once)."""
    return resolve("smollm2-135m")


@pytest.fixture(scope="session")
def model_folder(resolved_model: ResolvedModel) -> Path:
    """The folder of the demo model: openvino_model.xml, the tokenizer, carpool.json."""
    return resolved_model.folder


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
        case [str(), *_]:
            head = struct.pack("<IIQ", 9, 8, len(value))
            return head + b"".join(_string(item) for item in value)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        case _:
            raise TypeError(f"no GGUF type for {value!r}")


def gguf_bytes(
    metadata: dict[str, object],
    tensors: dict[str, tuple[tuple[int, ...], str]],
    version: int = 3,
    fill: int = 0,
) -> bytes:
    """A whole GGUF file; `tensors` maps a name to its shape (fastest first) and type name."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(value) for key, value in metadata.items())
    data = b""
    for name, (shape, type_name) in tensors.items():
        kind = GGML_TYPES[TYPE_IDS[type_name]]
        num_elements = 1
        for dimension in shape:
            num_elements *= dimension
        head += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        head += struct.pack("<IQ", TYPE_IDS[type_name], len(data))
        data += bytes([fill]) * (num_elements // kind.block_size * kind.block_bytes)
        data += bytes(-len(data) % 32)
    return head + bytes(-len(head) % 32) + data


def tiny_model(
    architecture: str = "llama", quantisation: str = "F16", **metadata: object
) -> tuple[dict[str, object], dict[str, tuple[tuple[int, ...], str]]]:
    """Metadata and tensors of a decoder of one layer: hidden 256, 4 heads, 2 KV heads."""
    tokens = ["<|end|>", *(chr(code) for code in range(0x21, 0x7F)), "ab"]
    pairs: dict[str, object] = {
        "general.architecture": architecture,
        "general.file_type": 7,
        f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 512,
        f"{architecture}.embedding_length": 256,
        f"{architecture}.feed_forward_length": 256,
        f"{architecture}.attention.head_count": 4,
        f"{architecture}.attention.head_count_kv": 2,
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] + [1] * (len(tokens) - 1),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}",
    }
    linear = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256}
    linear |= {"ffn_gate": 256, "ffn_up": 256, "ffn_down": 256}
    tensors: dict[str, tuple[tuple[int, ...], str]] = {
        "token_embd.weight": ((256, len(tokens)), quantisation),
        "output_norm.weight": ((256,), "F32"),
        "blk.0.attn_norm.weight": ((256,), "F32"),
        "blk.0.ffn_norm.weight": ((256,), "F32"),
    }
    tensors |= {f"blk.0.{n}.weight": ((256, rows), quantisation) for n, rows in linear.items()}
    return pairs | metadata, tensors


@pytest.fixture(scope="session")
def tiny_gguf_bytes() -> bytes:
    return gguf_bytes(*tiny_model())


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny model (see `tiny_model`) to a file; returns its path."""

    def write(name: str = "tiny.gguf", **options: object) -> Path:
        path = tmp_path / name
        path.write_bytes(gguf_bytes(*tiny_model(**options)))  # type: ignore[arg-type]
        return path

    return write


@pytest.fixture
def cache(tmp_path: Path) -> ModelCache:
    return ModelCache(tmp_path / "home")


@pytest.fixture
def ir_folder(tmp_path: Path) -> Callable[..., Path]:
    """Make a folder with the IR's files (one byte each) and a config.json."""

    def make(**config: object) -> Path:
        folder = tmp_path / "exported"
        folder.mkdir()
        for name in IR_FILES:
            (folder / name).write_bytes(b"x")
        fields: dict[str, object] = {
            "model_type": "qwen2",
            "hidden_size": 8,
            "intermediate_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 10,
            "max_position_embeddings": 128,
            "eos_token_id": 2,
        }
        (folder / "config.json").write_text(json.dumps(fields | config))
        return folder

    return make


@pytest.fixture
def fake_conversion(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it to replace the converting child by one that writes a byte per file, or fails."""

    def install(
        returncode: int = 0,
        stderr: str = "",
        error: BaseException | None = None,
        skip: tuple[str, ...] = (),
    ) -> None:
        def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            for name in set(IR_FILES) - set(skip):
                (Path(command[-1]).parent / name).write_bytes(b"x")
            if error is not None:
                raise error
            return subprocess.CompletedProcess(command, returncode, "", stderr)

        monkeypatch.setattr(subprocess, "run", run)

    return install
