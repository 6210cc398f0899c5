"""A model in the form the engine loads, and the file `carpool.json` that describes it."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from carpool.models.json_file import BadJSON, read_json
from carpool.models.spec import ModelSpec
from carpool.models.tokenizer_config import TokenizerConfig

FORMAT = 1
MANIFEST = "carpool.json"
MODEL_FILES = ("openvino_model.xml", "openvino_model.bin")
TOKENIZER_FILES = ("openvino_tokenizer.xml", "openvino_tokenizer.bin",
                   "openvino_detokenizer.xml", "openvino_detokenizer.bin")  # fmt: skip
IR_FILES = MODEL_FILES + TOKENIZER_FILES


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What a model name stands for.

    folder: holds `IR_FILES`. source: the name or path it was made from. source_sha256: of
    the GGUF it was converted from, None for a folder that is used where it lies.
    """

    name: str
    folder: Path
    spec: ModelSpec
    tokenizer: TokenizerConfig
    source: str
    source_sha256: str | None = None


def missing_files(folder: Path) -> list[str]:
    """Those of `IR_FILES` that are absent or empty."""
    paths = [folder / name for name in IR_FILES]
    return [path.name for path in paths if not (path.is_file() and path.stat().st_size)]


def write_manifest(model: ResolvedModel) -> None:
    """Write carpool.json into the folder: last, for it marks the folder as whole."""
    fields = dataclasses.asdict(model)
    del fields["folder"]
    text = json.dumps({"format": FORMAT, **fields}, indent=1, ensure_ascii=False)
    (model.folder / MANIFEST).write_text(text, encoding="utf-8")


def read_manifest(folder: Path) -> ResolvedModel | None:
    """The model in a converted folder, or None unless the folder is whole and of our format."""
    try:
        fields = read_json(folder / MANIFEST)
        if fields.get("format") != FORMAT or missing_files(folder):
            return None
        tokenizer: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in fields["tokenizer"].items()  # type: ignore[attr-defined]
        }
        sha256 = fields["source_sha256"]
        return ResolvedModel(
            name=str(fields["name"]),
            folder=folder,
            spec=ModelSpec(**fields["spec"]),  # type: ignore[arg-type]
            tokenizer=TokenizerConfig(**tokenizer),
            source=str(fields["source"]),
            source_sha256=None if sha256 is None else str(sha256),
        )
    except (BadJSON, KeyError, TypeError, AttributeError):
        return None
