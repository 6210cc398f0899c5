"""Which weights run: as stored or expanded, whichever is faster, found out once."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
import pytest
from openvino import opset13

from carpool.engine import weights as weights_module
from carpool.engine.executor import Executor, ExecutorConfig
from carpool.engine.expanded_weights import ExpansionError, expand_weights, has_compressed_weights
from carpool.engine.options import Dtype, KVCacheDtype, Weights
from carpool.engine.paged_model import ModelFileError
from carpool.engine.resolve import resolve
from carpool.engine.step_timing import MeasurementError, measure_in_child
from carpool.engine.weights import prepare_weights
from carpool.models.cache import ModelCache
from carpool.models.resolved import ResolvedModel

F32 = ExecutorConfig(dtype=Dtype.F32, kv_cache_dtype=KVCacheDtype.F32)


@pytest.fixture
def model(cache: ModelCache, write_gguf: Callable[..., Path]) -> ResolvedModel:
    """A tiny model with weights of 8 bits."""
    return resolve(str(write_gguf(quantisation="Q8_0")), cache)


@pytest.fixture
def seconds(monkeypatch):
    """What measuring finds, by whether the weights are expanded; and what was measured."""

    def install(compressed=1.0, expanded=2.0, error=None):
        measured = []

        def measure(path, config):
            measured.append(path)
            if error is not None:
                raise error
            return expanded if "expanded" in path.parent.name else compressed

        monkeypatch.setattr(weights_module, "measure_in_child", measure)
        return measured

    return install


def compressed_graph():
    """A table look-up and two matrix products whose weights are of 4 and 8 bits."""
    random = np.random.default_rng(4)

    def weight(rows, columns, kind):
        most = 15 if kind == "u4" else 255
        values = random.integers(0, most + 1, (rows, columns)).astype(np.uint8)
        stored = opset13.constant(values, dtype=getattr(openvino.Type, kind))
        scale = opset13.constant(random.normal(size=(rows, 1)).astype(np.float32))
        zero = opset13.constant(np.full((rows, 1), most / 2, np.float32))
        return opset13.multiply(opset13.subtract(opset13.convert(stored, "f32"), zero), scale)

    ids = opset13.parameter([-1], np.int64, name="ids")
    table = weight(20, 16, "u8")
    hidden = opset13.gather(table, ids, opset13.constant(np.int64(0)))
    hidden = opset13.matmul(hidden, weight(24, 16, "u4"), False, True)
    hidden = opset13.matmul(hidden, weight(16, 24, "u8"), False, True)
    logits = opset13.matmul(hidden, table, False, True)
    return openvino.Model([opset13.result(logits)], [ids], "tiny")


def run(graph):
    core = openvino.Core()
    compiled = core.compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([np.arange(20, dtype=np.int64)])[0])


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-5), ("f16", 5e-3), ("bf16", 5e-2)])
def test_expanded_weights_compute_the_same(dtype, tolerance):
    graph = compressed_graph()
    expected = run(graph.clone())
    assert has_compressed_weights(graph)
    # The table is looked up and multiplied by: it is expanded once and used twice.
    assert expand_weights(openvino.Core(), graph, dtype) == 4
    assert not has_compressed_weights(graph)
    scale = np.abs(expected).max()
    assert run(graph) / scale == pytest.approx(expected / scale, abs=tolerance)


def test_compressed_weights_are_used_where_they_lie(cache, model, seconds):
    measured = seconds()
    path = prepare_weights(cache, model, Weights.COMPRESSED, F32)
    assert (path, measured) == (model.folder / "openvino_model.xml", [])


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.BF16])
def test_expanded_weights_are_made_once_and_run(cache, model, dtype):
    said = []
    config = ExecutorConfig(dtype=dtype, kv_cache_dtype=KVCacheDtype.F32)
    path = prepare_weights(cache, model, Weights.EXPANDED, config, lambda *what: said.append(what))
    assert len(said) == 1
    assert f"expanding the weights of tiny to {dtype}" in said[0][0]
    assert not has_compressed_weights(openvino.Core().read_model(path))
    assert prepare_weights(cache, model, Weights.EXPANDED, config, said.append) == path
    executor = Executor(path, F32)
    assert executor.weight_bytes > Executor(model.folder / "openvino_model.xml", F32).weight_bytes


@pytest.mark.parametrize(
    ("compressed", "expanded", "name"), [(1.0, 2.0, "openvino_model"), (2.0, 1.0, "expanded-f32")]
)
def test_the_faster_weights_are_found_out_once(cache, model, seconds, compressed, expanded, name):
    measured = seconds(compressed, expanded)
    path = prepare_weights(cache, model, Weights.AUTO, F32)
    assert name in str(path)
    assert len(measured) == 2
    assert prepare_weights(cache, model, Weights.AUTO, F32) == path
    assert len(measured) == 2
    # What is slower here takes no disk.
    assert bool(list(cache.home.glob("converted/*expanded*"))) == (expanded < compressed)


def test_other_settings_are_measured_on_their_own(cache, model, seconds):
    measured = seconds()
    prepare_weights(cache, model, Weights.AUTO, F32)
    one_thread = ExecutorConfig(dtype=F32.dtype, kv_cache_dtype=F32.kv_cache_dtype, num_threads=1)
    prepare_weights(cache, model, Weights.AUTO, one_thread)
    assert len(measured) == 4
    prepare_weights(cache, model, Weights.AUTO, F32)
    assert len(measured) == 4


def test_what_cannot_be_measured_stays_as_it_is_and_is_tried_again(cache, model, seconds):
    measured = seconds(error=MeasurementError("too little memory"))
    for count in (1, 2):
        path = prepare_weights(cache, model, Weights.AUTO, F32)
        assert path == model.folder / "openvino_model.xml"
        assert len(measured) == count


def test_weights_that_are_not_compressed_are_not_measured(cache, write_gguf, seconds):
    measured = seconds()
    model = resolve(str(write_gguf(quantisation="F16")), cache)
    path = prepare_weights(cache, model, Weights.AUTO, F32)
    assert (path, measured) == (model.folder / "openvino_model.xml", [])


@pytest.mark.parametrize("spoil", [lambda text: text[:20], lambda text: text.replace("comp", "x")])
def test_notes_that_cannot_be_read_are_made_again(cache, model, seconds, spoil):
    measured = seconds()
    prepare_weights(cache, model, Weights.AUTO, F32)
    [notes] = cache.home.glob("choices/*.json")
    notes.write_text(spoil(notes.read_text()))
    prepare_weights(cache, model, Weights.AUTO, F32)
    assert len(measured) == 4
    assert "compressed" in json.loads(notes.read_text()).values()


def test_an_expansion_that_fails_says_what_else_works(cache, model, monkeypatch):
    killed = subprocess.CompletedProcess([], -9, "", "")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: killed)
    with pytest.raises(ExpansionError, match=r"exit code -9.*--weights compressed"):
        prepare_weights(cache, model, Weights.EXPANDED, F32)
    assert not list(cache.home.glob("converted/*expanded*"))


def test_a_workload_is_timed_in_a_process_of_its_own(model, tmp_path):
    assert measure_in_child(model.folder / "openvino_model.xml", F32) > 0
    with pytest.raises(MeasurementError, match="none"):
        measure_in_child(tmp_path / "none.xml", F32)


def test_a_file_that_is_broken_is_named(cache, model):
    (model.folder / "openvino_model.bin").write_bytes(b"cut off")
    with pytest.raises(ModelFileError, match=r"openvino_model\.xml: OpenVINO cannot load"):
        prepare_weights(cache, model, Weights.AUTO, F32)
