"""Compressed weights written out in the type the processor multiplies in.

A compressed weight is a small subgraph of constants (integers, scales, zero points). While
one sequence is decoded, reading few bytes wins; from a few sequences on, unpacking them in
each step may cost more than it saves. Which is faster is measured (`weights`).
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino
from openvino import opset13

from carpool.engine.convert import CONVERTER_VERSION
from carpool.engine.report import Report, silent, waiting
from carpool.errors import CarpoolError
from carpool.models.cache import ModelCache
from carpool.models.resolved import MODEL_FILES, ResolvedModel

_WEIGHT_PORT = {"MatMul": 1, "Gather": 0}
_COMPRESSED = frozenset({"u4", "i4", "u8", "i8", "nf4", "u2"})


class ExpansionError(CarpoolError):
    """The weights could not be expanded; the compressed ones still do."""


def expanded_model(
    cache: ModelCache, model: ResolvedModel, dtype: str, report: Report = silent
) -> Path:
    """The IR of `model` with its weights in `dtype`, made once per cache, in a child process.

    Raises CacheError or ExpansionError.
    """
    target = cache.converted(weights_hash(cache, model), f"{CONVERTER_VERSION}-expanded-{dtype}")
    xml = target / MODEL_FILES[0]
    with cache.lock(target, waiting(report, model.name)) as lock:
        if xml.is_file():
            return xml
        report(f"expanding the weights of {model.name} to {dtype}", 0, 0)
        size = {"f32": 4}.get(dtype, 2) * model.spec.num_parameters
        cache.require_space(size, f"expanding {model.name}")
        with cache.making(target) as folder:
            source = model.folder / MODEL_FILES[0]
            command = [sys.executable, "-m", "carpool.engine.expanded_weights"]
            command += [str(source), str(folder / "result" / MODEL_FILES[0]), dtype]
            done = subprocess.run(  # noqa: S603
                command, capture_output=True, text=True, check=False, pass_fds=[lock]
            )
            if done.returncode != 0:
                raise ExpansionError(
                    f"{source}: its weights cannot be expanded to {dtype} (exit code "
                    f"{done.returncode}); give --weights compressed"
                )
            cache.publish(folder / "result", target)
    return xml


def weights_hash(cache: ModelCache, model: ResolvedModel) -> str:
    """What the weights of `model` are known by in the cache."""
    return model.source_sha256 or cache.content_hash(model.folder / MODEL_FILES[1])


def expand_weights(core: openvino.Core, model: openvino.Model, dtype: str) -> int:
    """Put a constant of `dtype` ("bf16", "f16" or "f32") in place of each compressed weight
    of `model`; returns how many were replaced.

    Weights are evaluated one at a time, so memory grows only by the largest of them.
    """
    expanded: dict[str, openvino.Output] = {}
    num_replaced = 0
    for node, port in _compressed_weights(model):
        source = node.input_value(port)
        name = source.get_node().get_friendly_name()
        if name not in expanded:
            expanded[name] = _constant(_evaluate(core, source), dtype)
        node.input(port).replace_source_output(expanded[name])
        num_replaced += 1
    model.validate_nodes_and_infer_types()
    return num_replaced


def has_compressed_weights(model: openvino.Model) -> bool:
    return next(_compressed_weights(model), None) is not None


def _compressed_weights(model: openvino.Model) -> Iterator[tuple[openvino.Node, int]]:
    kinds: dict[str, tuple[bool, bool]] = {}
    for node in model.get_ordered_ops():
        kinds[node.get_friendly_name()] = _kind(node, kinds)
        port = _WEIGHT_PORT.get(node.get_type_name())
        if port is None:
            continue
        if kinds[node.input_value(port).get_node().get_friendly_name()] == (True, True):
            yield node, port


def _kind(node: openvino.Node, kinds: dict[str, tuple[bool, bool]]) -> tuple[bool, bool]:
    """(depends on constants alone, one of them is compressed); inputs come before users."""
    if node.get_type_name() == "Constant":
        return True, node.get_element_type().get_type_name() in _COMPRESSED
    sources = [kinds[value.get_node().get_friendly_name()] for value in node.input_values()]
    is_constant = bool(sources) and all(constant for constant, _ in sources)
    return is_constant, is_constant and any(compressed for _, compressed in sources)


def _evaluate(core: openvino.Core, source: openvino.Output) -> np.ndarray:
    subgraph = openvino.Model([opset13.result(source)], [], "weight")
    compiled = core.compile_model(subgraph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.asarray(compiled([])[0], np.float32)


def _constant(values: np.ndarray, dtype: str) -> openvino.Output:
    if dtype == "f32":
        return opset13.constant(values).output(0)
    constant = opset13.constant(values, dtype=getattr(openvino.Type, dtype))
    return opset13.convert(constant, "f32").output(0)


def main(arguments: Sequence[str]) -> None:
    """Write the IR at the first path to the second, its weights expanded to a type."""
    source, target, dtype = arguments
    core = openvino.Core()
    model = core.read_model(source)
    expand_weights(core, model, dtype)
    openvino.save_model(model, target, compress_to_fp16=False)


if __name__ == "__main__":
    main(sys.argv[1:])
