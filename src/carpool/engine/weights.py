"""Which form of a model's weights the engine runs: as stored, or expanded."""

import json
import platform
import shutil
from contextlib import suppress
from pathlib import Path

import openvino

from carpool.engine.executor import ExecutorConfig
from carpool.engine.expanded_weights import expanded_model, has_compressed_weights, weights_hash
from carpool.engine.options import Weights
from carpool.engine.paged_model import read_model
from carpool.engine.report import Report, silent
from carpool.engine.step_timing import measure_in_child
from carpool.errors import CarpoolError
from carpool.models.cache import ModelCache
from carpool.models.json_file import BadJSON, read_json
from carpool.models.resolved import MODEL_FILES, ResolvedModel


def prepare_weights(
    cache: ModelCache,
    model: ResolvedModel,
    weights: Weights,
    config: ExecutorConfig,
    report: Report = silent,
) -> Path:
    """The IR to load. AUTO expands and measures the first time, which takes about 20 s for a
    model of 135M parameters, and keeps what it found in the cache.

    Raises CarpoolError for a file that is broken, and if EXPANDED was asked for and cannot
    be had.
    """
    stored = model.folder / MODEL_FILES[0]
    core = openvino.Core()
    config = config.for_this_machine(core)
    if weights is Weights.AUTO:
        weights = _faster_weights(cache, model, core, config, report)
    if weights is Weights.COMPRESSED:
        return stored
    return expanded_model(cache, model, config.dtype.value, report)


def _faster_weights(
    cache: ModelCache,
    model: ResolvedModel,
    core: openvino.Core,
    config: ExecutorConfig,
    report: Report,
) -> Weights:
    """What cannot be expanded, or be remembered, stays as it is stored."""
    path = cache.home / "choices" / f"{weights_hash(cache, model)}.json"
    key = _machine_key(core, config)
    known = _read_choices(path)
    if known.get(key) in (Weights.COMPRESSED, Weights.EXPANDED):
        return Weights(known[key])
    stored = model.folder / MODEL_FILES[0]
    if not has_compressed_weights(read_model(core, stored)):
        return Weights.COMPRESSED
    try:
        expanded = expanded_model(cache, model, config.dtype.value, report)
        report(f"measuring which weights of {model.name} are faster here", 0, 0)
        seconds = {
            Weights.COMPRESSED: measure_in_child(stored, config),
            Weights.EXPANDED: measure_in_child(expanded, config),
        }
    except CarpoolError:
        return Weights.COMPRESSED
    choice = min(seconds, key=seconds.__getitem__)
    if choice is Weights.COMPRESSED:
        shutil.rmtree(expanded.parent, ignore_errors=True)
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(known | {key: choice.value}, indent=1))
        draft.replace(path)
    return choice


def _read_choices(path: Path) -> dict[str, str]:
    try:
        return {str(key): str(value) for key, value in read_json(path, default={}).items()}
    except BadJSON:
        return {}


def _machine_key(core: openvino.Core, config: ExecutorConfig) -> str:
    """What the outcome depends on."""
    processor = core.get_property("CPU", "FULL_DEVICE_NAME")
    capabilities = ",".join(sorted(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")))
    return "; ".join(
        (
            f"{processor} {platform.machine()} {capabilities}",
            f"openvino {openvino.__version__}",
            f"{config.num_threads} threads",
            f"{config.dtype}, KV {config.kv_cache_dtype}",
        )
    )
