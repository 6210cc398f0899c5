"""Gives converted 4-bit weights the offsets that their GGUF has.

A block of Q4_1 or Q4_K is d * q + m for 32 values q of 4 bits (ggml-common.h: block_q4_1 has
d and m in f16; block_q4_K has 6-bit multiples of two f16 numbers for each of 8 blocks).
OpenVINO's converter writes it as scale * (q - zero_point) and rounds the zero point -m/d to an
integer, which costs about as much accuracy as the quantisation itself. Here the rounded
constants are replaced by f16 ones. The other types have integer zero points.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13

from carpool.models.gguf import GGUFTensor, read_gguf

F16 = NDArray[np.float16]
F32 = NDArray[np.float32]

BLOCK_SIZE, Q4_1_BYTES = 32, 20
SUPER_BLOCK_SIZE, Q4_K_BYTES = 256, 144
_NO_SCALE = 1024.0
"""A block whose values are all the same has no scale; it gets that part of the value."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Scales and zero points f16[rows, blocks] of a tensor, and where its rows are, by the
    scales that the converter gave them: it may have permuted them."""

    scales: F16
    zero_points: F16
    index: dict[bytes, int]


def restore_zero_points(path: Path, gguf_path: Path) -> int:
    """Rewrite the IR at `path`, converted from the GGUF; how many weights were restored."""
    core = openvino.Core()
    model = core.read_model(path)
    tensors = [
        _rows(*_BLOCKS[tensor.type.name](_bytes(gguf_path, tensor)))
        for tensor in read_gguf(gguf_path).tensors
        if tensor.type.name in _BLOCKS
    ]
    num_restored = 0
    for multiply, subtract, scales in _rounded(model):
        exact = _find(tensors, scales)
        if exact is not None:
            for node, values in zip((multiply, subtract), exact, strict=True):
                constant = opset13.constant(values[:, :, None])
                node.input(1).replace_source_output(constant.output(0))
            num_restored += 1
    if num_restored:
        model.validate_nodes_and_infer_types()
        draft = path.with_name("restored.xml")
        openvino.save_model(model, draft, compress_to_fp16=False)
        del model, core
        draft.with_suffix(".bin").replace(path.with_suffix(".bin"))
        draft.replace(path)
    return num_restored


def _bytes(path: Path, tensor: GGUFTensor) -> NDArray[np.uint8]:
    """u8[rows, bytes of a row]."""
    data = np.fromfile(path, np.uint8, tensor.num_bytes, offset=tensor.offset)
    return data.reshape(tensor.shape[1], -1)


def _q4_1_blocks(data: NDArray[np.uint8]) -> tuple[F32, F32]:
    """d and m, f32[rows, blocks]."""
    blocks = data.reshape(len(data), -1, Q4_1_BYTES)
    return _f16(blocks[:, :, :2]), _f16(blocks[:, :, 2:4])


def _q4_k_blocks(data: NDArray[np.uint8]) -> tuple[F32, F32]:
    """d and m, f32[rows, blocks]; the layout of the 6-bit numbers is get_scale_min_k4's."""
    blocks = data.reshape(len(data), -1, Q4_K_BYTES)
    low, middle, high = (blocks[:, :, start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], axis=2)
    offsets = np.concatenate([middle & 63, (high >> 4) | (middle >> 6 << 4)], axis=2)
    d = _f16(blocks[:, :, :2])[:, :, None] * scales
    m = -_f16(blocks[:, :, 2:4])[:, :, None] * offsets
    return d.reshape(len(data), -1), m.reshape(len(data), -1)


_BLOCKS: Mapping[str, Callable[[NDArray[np.uint8]], tuple[F32, F32]]] = {
    "Q4_1": _q4_1_blocks,
    "Q4_K": _q4_k_blocks,
}


def _f16(raw: NDArray[np.uint8]) -> F32:
    return np.ascontiguousarray(raw).view(np.float16)[:, :, 0].astype(np.float32)


def _rows(d: F32, m: F32) -> _Rows:
    converted = d.astype(np.float16)
    scales = np.where(converted == 0, np.abs(m) / _NO_SCALE, converted).astype(np.float16)
    zero_points = np.divide(-m, scales.astype(np.float32), out=np.zeros_like(m), where=scales != 0)
    index = {row.tobytes(): number for number, row in enumerate(converted)}
    return _Rows(scales, zero_points.astype(np.float16), index)


def _rounded(model: openvino.Model) -> Iterator[tuple[openvino.Node, openvino.Node, F16]]:
    """Each product of a scale and the difference to a 4-bit zero point, with that difference
    and the scales f16[rows, blocks]."""
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
            yield node, subtract, np.asarray(scale.data, np.float16)[:, :, 0]


def _find(tensors: list[_Rows], scales: F16) -> tuple[F16, F16] | None:
    """Scales and zero points of the tensor whose rows have these scales, in their order."""
    keys = [row.tobytes() for row in np.ascontiguousarray(scales)]
    for rows in tensors:
        if len(rows.zero_points) == len(keys) and all(key in rows.index for key in keys):
            order = [rows.index[key] for key in keys]
            return rows.scales[order], rows.zero_points[order]
    return None
