"""What the engine runs are the weights of the file, not the converter's idea of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
import pytest

from carpool.engine.convert import convert_gguf
from carpool.engine.expanded_weights import expand_weights
from carpool.engine.resolve import default_cache
from carpool.models.cache import ModelCache
from carpool.models.gguf import read_gguf
from carpool.models.resolved import ResolvedModel

# Each decodes u8[blocks, bytes of a block] to f32[blocks, values of a block] as ggml's
# dequantize_row_* do, value by value.


def halves(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float32)


def nibbles(quants: np.ndarray) -> np.ndarray:
    return np.concatenate([quants & 15, quants >> 4], axis=1).astype(np.float32)


def q4_0(blocks: np.ndarray) -> np.ndarray:
    return halves(blocks[:, :2]) * (nibbles(blocks[:, 2:]) - 8)


def q4_1(blocks: np.ndarray) -> np.ndarray:
    return halves(blocks[:, :2]) * nibbles(blocks[:, 4:]) + halves(blocks[:, 2:4])


def q8_0(blocks: np.ndarray) -> np.ndarray:
    return halves(blocks[:, :2]) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def q4_k(blocks: np.ndarray) -> np.ndarray:
    values = np.zeros((len(blocks), 256), np.float32)
    for row, block in enumerate(blocks):
        d, least = halves(block[:4])
        packed, quants = block[4:16].astype(int), block[16:]
        for part in range(8):
            if part < 4:
                scale, offset = packed[part] & 63, packed[part + 4] & 63
            else:
                scale = (packed[part + 4] & 15) | (packed[part - 4] >> 6 << 4)
                offset = (packed[part + 4] >> 4) | (packed[part] >> 6 << 4)
            raw = quants[part // 2 * 32 : part // 2 * 32 + 32]
            four_bits = (raw >> 4 if part % 2 else raw & 15).astype(np.float32)
            values[row, part * 32 : part * 32 + 32] = d * scale * four_bits - least * offset
    return values


def q6_k(blocks: np.ndarray) -> np.ndarray:
    values = np.zeros((len(blocks), 256), np.float32)
    for row, block in enumerate(blocks):
        scales, d = block[192:208].view(np.int8), halves(block[208:210])[0]
        for place in range(256):
            half, inside = divmod(place, 128)
            quarter, column = divmod(inside, 32)
            low = block[half * 64 + quarter % 2 * 32 + column] >> (4 * (quarter // 2)) & 15
            high = block[128 + half * 32 + column] >> (2 * quarter) & 3
            scale = scales[half * 8 + quarter * 2 + column // 16]
            values[row, place] = d * scale * ((int(low) | int(high) << 4) - 32)
    return values


HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
DECODERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q6_K": q6_k,
}


def random_blocks(kind: str, num_blocks: int, num_bytes: int, seed: int) -> np.ndarray:
    """Any bytes, but for the f16 numbers, which are those of usual weights. Some blocks have no
    scale: in a K type, where the 6 bits of one are zero."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (num_blocks, num_bytes), np.uint8)
    for start in HALVES[kind]:
        numbers = rng.uniform(1e-3, 1e-2, num_blocks)
        if not kind.endswith("_K"):
            numbers *= rng.random(num_blocks) > 0.02
        if kind == "Q4_1" and start == 2:
            numbers *= -7
        blocks[:, start : start + 2] = numbers.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks


def matrices_of(path: Path) -> list[np.ndarray]:
    core = openvino.Core()
    model = core.read_model(path)
    expand_weights(core, model, "f32")
    return [
        np.asarray(node.data, np.float32)
        for node in model.get_ordered_ops()
        if node.get_type_name() == "Constant" and len(node.shape) == 2
    ]


def least_error(expected: np.ndarray, matrices: list[np.ndarray]) -> float:
    """RMS of the difference to the matrix that is meant, over that of `expected`."""
    same = [each for each in matrices if each.shape == expected.shape]
    errors = [np.sqrt(np.mean((each - expected) ** 2)) for each in same]
    return float(min(errors) / np.sqrt(np.mean(expected**2)))


@pytest.mark.model
@pytest.mark.parametrize("kind", DECODERS)
def test_every_type_is_converted_exactly(write_gguf, cache: ModelCache, kind: str) -> None:
    path = write_gguf(quantisation=kind)
    matrices = [each for each in read_gguf(path).tensors if each.type.name == kind]
    with path.open("r+b") as file:
        for seed, tensor in enumerate(matrices):
            num_bytes = tensor.type.block_bytes
            blocks = random_blocks(kind, tensor.num_bytes // num_bytes, num_bytes, seed)
            file.seek(tensor.offset)
            file.write(blocks.tobytes())
    model = convert_gguf(cache, path, "0" * 64, "tiny", str(path))
    converted = matrices_of(model.folder / "openvino_model.xml")
    # Those of queries and keys have their rows in another order.
    for name in ("attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        [tensor] = [each for each in matrices if each.name == f"blk.0.{name}.weight"]
        num_bytes = tensor.type.block_bytes
        raw = np.fromfile(path, np.uint8, tensor.num_bytes, offset=tensor.offset)
        expected = DECODERS[kind](raw.reshape(-1, num_bytes)).reshape(tensor.shape[::-1])
        error = least_error(expected, converted)
        print(f"{kind} {name}: {error:.1e}")
        assert error < 2e-3, name


@pytest.mark.model
def test_the_demo_models_weights_are_those_of_its_file(resolved_model: ResolvedModel) -> None:
    assert resolved_model.source_sha256
    path = default_cache().blob(resolved_model.source_sha256)
    [tensor] = [t for t in read_gguf(path).tensors if t.name == "blk.3.ffn_gate.weight"]
    raw = np.fromfile(path, np.uint8, tensor.num_bytes, offset=tensor.offset).reshape(-1, 20)
    expected = q4_1(raw).reshape(tensor.shape[::-1])
    converted = matrices_of(resolved_model.folder / "openvino_model.xml")
    assert least_error(expected, converted) < 2e-3
