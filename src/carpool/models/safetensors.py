"""Headers of safetensors files: names, types and sizes of tensors, never their data.

Format: https://github.com/huggingface/safetensors#format: eight bytes with the length of a
JSON header, the header, the data. Every length is checked against the file's before it is
believed.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from carpool.errors import CarpoolError
from carpool.models.json_file import read_json

INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The limit of the reference implementation."""


class SafetensorsError(CarpoolError):
    """A safetensors file or index that is not whole; the message names file and tensor."""


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """A tensor as it is stored: `dtype` in the format's own names, like BF16 or F8_E4M3."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_header(path: Path) -> list[TensorHeader]:
    """Raises `SafetensorsError`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                _fail(
                    path,
                    f"truncated: its header takes {length} bytes, the file has {size}; fetch or "
                    "copy it again",
                )
            text = file.read(length)
    except OSError as error:
        _fail(path, f"cannot be read: {error.strerror}")
    try:
        fields = json.loads(text)
    except ValueError:
        _fail(path, "its header is not JSON; fetch it again")
    if not isinstance(fields, dict):
        _fail(path, "its header is not an object; fetch it again")
    tensors = [_tensor(path, name, entry) for name, entry in fields.items() if name[:2] != "__"]
    end = 8 + length + sum(tensor.num_bytes for tensor in tensors)
    if end > size:
        _fail(path, f"truncated: needs {end} bytes, has {size}; fetch or copy it again")
    return tensors


def read_folder_headers(folder: Path) -> list[TensorHeader]:
    """Of all shards, by the index where there is one; empty without any. Raises
    `SafetensorsError` for a shard that the index names and the folder lacks."""
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        if not isinstance(weight_map, dict):
            raise SafetensorsError(f"{folder / INDEX}: no weight_map; fetch it again")
        paths = [folder / str(name) for name in sorted(set(weight_map.values()))]
        if missing := [path.name for path in paths if not path.is_file()]:
            raise SafetensorsError(
                f"{folder}: the index names shards that are not there: {', '.join(missing)}; "
                "fetch them, or plan from the config.json alone: give its path"
            )
    else:
        paths = sorted(folder.glob("*.safetensors"))
    return [tensor for path in paths for tensor in read_header(path)]


def _tensor(path: Path, name: str, entry: object) -> TensorHeader:
    try:
        begin, end = entry["data_offsets"]  # type: ignore[index]
        shape = tuple(int(n) for n in entry["shape"])  # type: ignore[index]
        dtype = str(entry["dtype"])  # type: ignore[index]
    except (TypeError, KeyError, ValueError):
        _fail(path, f"tensor {name!r} is malformed in its header")
    if not (isinstance(begin, int) and isinstance(end, int) and 0 <= begin <= end):
        _fail(path, f"tensor {name!r} has the impossible offsets {begin!r} to {end!r}")
    return TensorHeader(name, dtype, shape, end - begin)


def _fail(path: Path, what: str) -> NoReturn:
    raise SafetensorsError(f"{path}: {what}")
