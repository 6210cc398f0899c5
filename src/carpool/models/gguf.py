"""A reader of GGUF files: header, metadata and tensor table, never the weights.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3,
little-endian). Every length in the file is checked against the bytes that are left
before anything is allocated, so a truncated or hostile file ends in `GGUFError`.
"""

import array
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn

from carpool.errors import CarpoolError
from carpool.models.ggml import GGML_TYPES, GGMLType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 65_535
MAX_NESTING = 4
DEFAULT_ALIGNMENT = 32

# GGUF value type -> struct code of one little-endian value.
SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
STRING, ARRAY = 8, 9


class GGUFError(CarpoolError):
    """The file is not a whole, valid GGUF; the message names the file and what is wrong."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One row of the tensor table. `shape` is in GGUF's order: the fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    """Bytes from the start of the file."""

    @property
    def num_elements(self) -> int:
        return _product(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements // self.type.block_size * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GGUF:
    """What stands before the weights. Metadata arrays are lists of strings or `array.array`."""

    path: Path
    version: int
    metadata: Mapping[str, object]
    tensors: tuple[GGUFTensor, ...]


def read_gguf(path: Path) -> GGUF:
    """Read and check everything but the weights. Raises `GGUFError`."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            return _Reader(path, file, size).read()
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise GGUFError(f"{path}: a folder, not a GGUF file") from None
    except OSError as error:
        raise GGUFError(f"{path}: cannot be read: {error.strerror}") from None


class _Reader:
    """A cursor over the file that never reads past its end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path = path
        self.file = file
        self.size = size
        self.position = 0

    def read(self) -> GGUF:
        version = self._read_version()
        num_tensors = self._count("tensors", self._u64(), min_bytes=24)
        num_pairs = self._count("metadata entries", self._u64(), min_bytes=13)
        metadata: dict[str, object] = {}
        for _ in range(num_pairs):
            key = self._name("metadata key")
            if key in metadata:
                self._fail(f"metadata key {key!r} stands twice")
            metadata[key] = self._value(self._u32(), key)
        rows = [self._tensor_row() for _ in range(num_tensors)]
        return GGUF(self.path, version, metadata, self._place(rows, metadata))

    def _read_version(self) -> int:
        if self.size < 4 or self._bytes(4) != MAGIC:
            self._fail("not a GGUF file (it does not start with 'GGUF')")
        version = self._u32()
        if version & 0xFFFF == 0:
            self._fail("a big-endian GGUF; convert it to little-endian")
        if version not in VERSIONS:
            self._fail(f"GGUF version {version}; supported: 2, 3. Convert the model again")
        return version

    def _tensor_row(self) -> tuple[str, tuple[int, ...], GGMLType, int]:
        name = self._name("tensor name")
        num_dimensions = self._u32()
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            self._fail(f"tensor {name!r} has {num_dimensions} dimensions; supported: 1 to 4")
        shape = tuple(self._u64() for _ in range(num_dimensions))
        if 0 in shape or _product(shape) > 2**62:
            self._fail(f"tensor {name!r} has the impossible shape {list(shape)}")
        type_id = self._u32()
        if type_id not in GGML_TYPES:
            self._fail(f"tensor {name!r} has the unknown ggml type {type_id}")
        kind = GGML_TYPES[type_id]
        if shape[0] % kind.block_size:
            self._fail(
                f"tensor {name!r}: rows of {shape[0]} do not divide into "
                f"{kind.name} blocks of {kind.block_size}"
            )
        return name, shape, kind, self._u64()

    def _place(
        self,
        rows: list[tuple[str, tuple[int, ...], GGMLType, int]],
        metadata: Mapping[str, object],
    ) -> tuple[GGUFTensor, ...]:
        """Turn offsets into file positions, and check that every tensor lies in the file."""
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment > 2**20:
            self._fail(f"general.alignment is {alignment!r}")
        start = -(-self.position // alignment) * alignment
        names = {row[0] for row in rows}
        if len(names) != len(rows):
            self._fail("a tensor name stands twice")
        tensors = tuple(GGUFTensor(n, s, k, start + offset) for n, s, k, offset in rows)
        end = start
        for tensor in sorted(tensors, key=lambda tensor: tensor.offset):
            if (tensor.offset - start) % alignment or tensor.offset < end:
                self._fail(f"tensor {tensor.name!r} lies at the wrong offset {tensor.offset}")
            end = tensor.offset + tensor.num_bytes
        if end > self.size:
            self._truncated(end)
        return tensors

    def _value(self, kind: int, key: str, nesting: int = 0) -> object:
        if kind in SCALARS:
            return self._scalar(SCALARS[kind])
        if kind == STRING:
            return self._string().decode("utf-8", errors="replace")
        if kind != ARRAY:
            self._fail(f"metadata {key!r} has the unknown value type {kind}")
        element, length = self._u32(), self._u64()
        if element == STRING:
            self._count(f"strings in {key!r}", length, min_bytes=8)
            return [self._string().decode("utf-8", errors="replace") for _ in range(length)]
        if element in SCALARS:
            return self._scalars(SCALARS[element], length, key)
        if element != ARRAY or nesting == MAX_NESTING:
            self._fail(f"metadata {key!r} holds an array of the unknown type {element}")
        self._count(f"arrays in {key!r}", length, min_bytes=12)
        return [self._value(ARRAY, key, nesting + 1) for _ in range(length)]

    def _scalars(self, code: str, length: int, key: str) -> object:
        values = array.array("B" if code == "?" else code)
        self._count(f"values in {key!r}", length, min_bytes=values.itemsize)
        values.frombytes(self._bytes(length * values.itemsize))
        if sys.byteorder == "big":
            values.byteswap()
        return values

    def _name(self, what: str) -> str:
        raw = self._string()
        if len(raw) > MAX_NAME_BYTES:
            self._fail(f"a {what} of {len(raw)} bytes; the limit is {MAX_NAME_BYTES}")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self._fail(f"a {what} is not UTF-8: {raw[:32]!r}")

    def _string(self) -> bytes:
        return self._bytes(self._u64())

    def _u32(self) -> int:
        return int.from_bytes(self._bytes(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._bytes(8), "little")

    def _scalar(self, code: str) -> object:
        value: object = struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]
        return value

    def _bytes(self, length: int) -> bytes:
        end = self.position + length
        if end > self.size:
            self._truncated(end)
        data = self.file.read(length)
        if len(data) != length:
            self._truncated(end)
        self.position = end
        return data

    def _count(self, what: str, count: int, min_bytes: int) -> int:
        if count * min_bytes > self.size - self.position:
            self._fail(
                f"truncated or damaged: it claims {count} {what} "
                f"with {self.size - self.position} bytes left. Fetch or copy it again"
            )
        return count

    def _truncated(self, needed: int) -> NoReturn:
        self._fail(f"truncated: needs {needed} bytes, has {self.size}. Fetch or copy it again")

    def _fail(self, what: str) -> NoReturn:
        raise GGUFError(f"{self.path}: {what}")


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for dimension in shape:
        product *= dimension
    return product
