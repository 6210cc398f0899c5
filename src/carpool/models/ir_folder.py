"""OpenVINO IR folders that optimum exported: described by the JSON files beside the graph."""

from pathlib import Path

from carpool.errors import CarpoolError
from carpool.models.json_file import read_json
from carpool.models.resolved import IR_FILES, ResolvedModel, missing_files
from carpool.models.spec import spec_from_config
from carpool.models.tokenizer_config import tokenizer_from_folder


class IncompleteModel(CarpoolError):
    """A model folder lacks files that the engine loads."""


def read_ir_folder(
    folder: Path, name: str, source: str, source_sha256: str | None = None
) -> ResolvedModel:
    """Describe an IR folder with its config.json.

    Raises `IncompleteModel`, `BadJSON` or `UnsupportedModel`.
    """
    if missing := missing_files(folder):
        raise IncompleteModel(
            f"{folder}: not a whole OpenVINO model: {', '.join(missing)} missing or empty; "
            f"it must hold {', '.join(IR_FILES)}"
        )
    spec = spec_from_config(
        read_json(folder / "config.json"),
        weight_bytes=(folder / "openvino_model.bin").stat().st_size,
        quantization=_quantization(folder),
        where=str(folder / "config.json"),
    )
    tokenizer = tokenizer_from_folder(folder)
    return ResolvedModel(name, folder, spec, tokenizer, source, source_sha256)


def _quantization(folder: Path) -> str:
    """The weight format that optimum wrote down; "IR" where it wrote none."""
    config = read_json(folder / "openvino_config.json", default={})
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and quantization.get("bits"):
        return f"INT{quantization['bits']}"
    dtype = config.get("dtype")
    return str(dtype).upper() if dtype else "IR"
