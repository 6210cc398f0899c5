"""Files of many GiB are described by a few KiB: what the process reads is counted by the kernel."""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from carpool.models.gguf import read_gguf
from carpool.models.safetensors import read_header

COUNTS = Path("/proc/self/io")
GIB = 2**30

pytestmark = pytest.mark.skipif(not COUNTS.exists(), reason="counts reads with Linux's /proc")


@contextmanager
def reading_at_most(num_bytes: int) -> Iterator[None]:
    before = bytes_read()
    yield
    assert bytes_read() - before < num_bytes


def bytes_read() -> int:
    counts = dict(line.split(": ") for line in COUNTS.read_text().splitlines())
    return int(counts["rchar"])


def make_sparse(path: Path, head: bytes, size: int) -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return path


def test_of_safetensors(tmp_path: Path) -> None:
    size = 16 * GIB
    tensor = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [0, size]}
    text = json.dumps({"model.layers.0.mlp.up_proj.weight": tensor}).encode()
    path = make_sparse(tmp_path / "m.safetensors", struct.pack("<Q", len(text)) + text, size)
    with reading_at_most(200_000):
        (header,) = read_header(path)
    assert header.num_bytes == size


def test_of_gguf(tmp_path: Path) -> None:
    size = 16 * GIB
    name = b"blk.0.ffn_up.weight"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q", len(name)) + name
    head += struct.pack("<IQQIQ", 2, 2**15, size // 2**16, 1, 0)
    head += bytes(-len(head) % 32)
    path = make_sparse(tmp_path / "m.gguf", head, size)
    with reading_at_most(200_000):
        (tensor,) = read_gguf(path).tensors
    assert tensor.num_bytes == size
