"""What the engine runs are the weights of the file, not the converter's idea of them."""

from pathlib import Path

import numpy as np
import openvino
import pytest

from carpool.engine.expanded_weights import expand_weights
from carpool.engine.resolve import default_cache
from carpool.models.gguf import read_gguf
from carpool.models.resolved import ResolvedModel

pytestmark = pytest.mark.model


def gguf_matrix(path: Path, name: str) -> np.ndarray:
    """A Q4_1 matrix, block by block as ggml's documentation of block_q4_1 has it."""
    [tensor] = [each for each in read_gguf(path).tensors if each.name == name]
    raw = path.read_bytes()[tensor.offset : tensor.offset + tensor.num_bytes]
    values = []
    for start in range(0, len(raw), 20):
        scale, offset = np.frombuffer(raw[start : start + 4], np.float16).astype(np.float32)
        quants = np.frombuffer(raw[start + 4 : start + 20], np.uint8)
        block = np.concatenate([quants & 15, quants >> 4])
        values.append(block * scale + offset)
    return np.concatenate(values).reshape(tensor.shape[1], tensor.shape[0])


def test_converted_weights_are_those_of_the_file(resolved_model: ResolvedModel) -> None:
    assert resolved_model.source_sha256
    path = default_cache().blob(resolved_model.source_sha256)
    expected = gguf_matrix(path, "blk.3.ffn_gate.weight")
    core = openvino.Core()
    model = core.read_model(resolved_model.folder / "openvino_model.xml")
    expand_weights(core, model, "f32")
    matrices = [
        node.data
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant" and list(node.shape) == list(expected.shape)
    ]
    errors = [np.abs(matrix - expected).max() for matrix in matrices]
    assert min(errors) < 0.01 * np.abs(expected).max()
