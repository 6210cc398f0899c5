"""Gives converted Q4_1 weights the offsets that their GGUF has.

A Q4_1 block is d * q + m (ggml's block_q4_1: f16 d and m, 32 values of 4 bits). OpenVINO's
converter writes it as scale * (q - zero_point) and rounds the zero point -m/d to an integer,
which costs about as much accuracy as the quantisation itself. Here the rounded constants are
replaced by f16 ones.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13

from carpool.models.gguf import GGUF, GGUFTensor, read_gguf

BLOCK_SIZE, BLOCK_BYTES = 32, 20


@dataclass(frozen=True, slots=True)
class _Rows:
    """Zero points f16[rows, blocks] of a tensor, and where its rows are, by their scales: the
    converter may have permuted them."""

    zero_points: NDArray[np.float16]
    index: dict[bytes, int]


def restore_zero_points(path: Path, gguf_path: Path) -> int:
    """Rewrite the IR at `path`, converted from the GGUF; how many weights were restored."""
    core = openvino.Core()
    model = core.read_model(path)
    tensors = [_rows(gguf_path, tensor) for tensor in _q4_1_tensors(read_gguf(gguf_path))]
    num_restored = 0
    for subtract, scales in _rounded(model):
        exact = _find(tensors, scales)
        if exact is not None:
            constant = opset13.constant(exact[:, :, None])
            subtract.input(1).replace_source_output(constant.output(0))
            num_restored += 1
    if num_restored:
        model.validate_nodes_and_infer_types()
        draft = path.with_name("restored.xml")
        openvino.save_model(model, draft, compress_to_fp16=False)
        del model, core
        draft.with_suffix(".bin").replace(path.with_suffix(".bin"))
        draft.replace(path)
    return num_restored


def _q4_1_tensors(gguf: GGUF) -> Iterator[GGUFTensor]:
    return (tensor for tensor in gguf.tensors if tensor.type.name == "Q4_1")


def _rows(path: Path, tensor: GGUFTensor) -> _Rows:
    row_length, num_rows = tensor.shape[0], tensor.shape[1]
    blocks = np.fromfile(path, np.uint8, tensor.num_bytes, offset=tensor.offset)
    blocks = blocks.reshape(num_rows, row_length // BLOCK_SIZE, BLOCK_BYTES)
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0]
    offsets = np.ascontiguousarray(blocks[:, :, 2:4]).view(np.float16)[:, :, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        exact = -offsets.astype(np.float32) / scales.astype(np.float32)
    # A block of one value has no scale, and its zero point says nothing.
    exact[~np.isfinite(exact)] = 0.0
    return _Rows(
        exact.astype(np.float16), {row.tobytes(): number for number, row in enumerate(scales)}
    )


def _rounded(
    model: openvino.Model,
) -> Iterator[tuple[openvino.Node, NDArray[np.float16]]]:
    """Each subtraction of a 4-bit zero point, with its weight's scales f16[rows, blocks]."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Multiply":
            continue
        subtract, scale = (value.get_node() for value in node.input_values())
        if subtract.get_type_name() != "Subtract" or scale.get_type_name() != "Constant":
            continue
        zero_point = subtract.input_value(1).get_node()
        if zero_point.get_type_name() == "Convert":
            zero_point = zero_point.input_value(0).get_node()
        shape = list(scale.get_output_partial_shape(0).to_shape())
        if zero_point.get_element_type().get_type_name() == "u4" and len(shape) == 3:
            yield subtract, np.asarray(scale.data, np.float16)[:, :, 0]


def _find(tensors: list[_Rows], scales: NDArray[np.float16]) -> NDArray[np.float16] | None:
    """The zero points of the tensor whose rows have these scales, in their order."""
    keys = [row.tobytes() for row in np.ascontiguousarray(scales)]
    for rows in tensors:
        if len(rows.zero_points) == len(keys) and all(key in rows.index for key in keys):
            return rows.zero_points[[rows.index[key] for key in keys]]
    return None
