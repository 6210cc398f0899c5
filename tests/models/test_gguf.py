"""Reading GGUF headers: what is in them, and what happens when they are damaged."""

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.models.gguf import GGUFError, read_gguf

Write = Callable[..., Path]


def test_reads_metadata_and_tensors(write_gguf: Write) -> None:
    path = write_gguf(quantisation="Q4_0")
    gguf = read_gguf(path)
    assert gguf.version == 3
    assert gguf.metadata["general.architecture"] == "llama"
    assert gguf.metadata["llama.context_length"] == 512
    assert gguf.metadata["tokenizer.ggml.tokens"][-1] == "ab"
    assert list(gguf.metadata["tokenizer.ggml.token_type"])[:2] == [3, 1]
    query = next(t for t in gguf.tensors if t.name == "blk.0.attn_q.weight")
    assert (query.shape, query.type.name) == ((256, 256), "Q4_0")
    assert (query.num_elements, query.num_bytes) == (65_536, 65_536 // 32 * 18)
    last = max(gguf.tensors, key=lambda tensor: tensor.offset)
    assert last.offset + last.num_bytes <= path.stat().st_size


def test_reads_version_2(write_gguf: Write) -> None:
    path = write_gguf()
    data = bytearray(path.read_bytes())
    data[4:8] = struct.pack("<I", 2)
    path.write_bytes(data)
    assert read_gguf(path).version == 2


def test_a_file_cut_in_its_weights_says_how_many_bytes_it_needs(write_gguf: Write) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(GGUFError, match=r"tiny\.gguf: truncated: needs \d+ bytes, has \d+"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a GGUF file"),
        (b"PK\x03\x04 and more", "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1; supported: 2, 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF\x03\x00", "truncated: needs 8 bytes, has 6"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "claims 1152921504606846976 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "claims .* metadata entries"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**63) + b"12345",
         "truncated"),
    ],
)  # fmt: skip
def test_a_bad_header_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)


def entry(key: str, kind: int, payload: bytes) -> bytes:
    raw = struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + payload
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + raw


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (entry("k", 99, b""), "'k' has the unknown value type 99"),
        (entry("k", 9, struct.pack("<IQ", 8, 2**61)), "claims .* strings in 'k'"),
        (entry("k", 9, struct.pack("<IQ", 10, 2**61)), "claims .* values in 'k'"),
        (entry("k", 9, struct.pack("<IQ", 9, 1) * 50), "array of the unknown type 9"),
        (entry("general.alignment", 4, struct.pack("<I", 0)), "general.alignment is 0"),
    ],
)
def test_hostile_metadata_is_refused_before_memory_is_taken(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    with pytest.raises(GGUFError, match=message):
        read_gguf(path)


def test_nested_arrays_are_read(tmp_path: Path) -> None:
    inner = struct.pack("<IQ2i", 5, 2, 7, -8)
    path = tmp_path / "nested.gguf"
    path.write_bytes(entry("k", 9, struct.pack("<IQ", 9, 1) + inner) + bytes(32))
    assert [list(row) for row in read_gguf(path).metadata["k"]] == [[7, -8]]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (struct.pack("<I5Q", 5, 1, 1, 1, 1, 1), "5 dimensions"),
        (struct.pack("<IQIQ", 1, 0, 0, 0), r"impossible shape \[0\]"),
        (struct.pack("<I2QIQ", 2, 2**40, 2**40, 0, 0), "impossible shape"),
        (struct.pack("<IQIQ", 1, 32, 77, 0), "unknown ggml type 77"),
        (struct.pack("<IQIQ", 1, 33, 2, 0), "rows of 33 do not divide into Q4_0 blocks of 32"),
        (struct.pack("<IQIQ", 1, 32, 0, 5), "wrong offset"),
        (struct.pack("<IQIQ", 1, 2**40, 0, 0), "truncated: needs"),
    ],
)
def test_a_bad_tensor_row_is_named(tmp_path: Path, tensor: bytes, message: str) -> None:
    path = tmp_path / "tensor.gguf"
    name = struct.pack("<Q", 1) + b"t"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + name + tensor + bytes(256))
    with pytest.raises(GGUFError, match=message):
        read_gguf(path)


def test_missing_file_and_folder_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="no such file"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(GGUFError, match="a folder"):
        read_gguf(tmp_path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "damaged.gguf"


@given(data=st.data())
def test_any_damage_to_the_header_ends_in_an_answer_or_a_gguf_error(
    damaged: Path, tiny_gguf_bytes: bytes, data: st.DataObject
) -> None:
    """Flip bytes and cut the file anywhere: never another exception."""
    content = bytearray(tiny_gguf_bytes)
    for _ in range(data.draw(st.integers(0, 4))):
        position = data.draw(st.integers(0, 3000))
        content[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    damaged.write_bytes(content[:cut])
    with contextlib.suppress(GGUFError):
        assert read_gguf(damaged).version in (2, 3)
