"""From what a person types to a folder that the engine can load."""

import dataclasses
import hashlib
import os
import re
from pathlib import Path

from carpool.engine.convert import convert_gguf, converter_version, export_huggingface
from carpool.engine.fetch import fetch
from carpool.engine.hub import fetch_from_hub
from carpool.engine.report import Report, silent
from carpool.errors import CarpoolError
from carpool.models.cache import ModelCache, default_home
from carpool.models.catalogue import CATALOGUE, did_you_mean
from carpool.models.ir_folder import read_ir_folder
from carpool.models.resolved import ResolvedModel, read_manifest

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w./-]+\.gguf)?")
"""`org/name`, or `org/name:FILE.gguf`."""


class UnknownModel(CarpoolError):
    """No model by that name, at that path, or in that folder."""


def default_cache() -> ModelCache:
    return ModelCache(default_home(os.environ))


def resolve(name: str, cache: ModelCache | None = None, report: Report = silent) -> ResolvedModel:
    """Fetch and convert what `name` stands for, as far as it is not there yet.

    `name`: a catalogue name, the name of a model in the cache, the path of a GGUF file, of
    an OpenVINO IR folder or of a Hugging Face folder, or a hub id `org/name[:FILE.gguf]`.
    Raises `CarpoolError`s only: each says what to do.
    """
    cache = cache or default_cache()
    if name in CATALOGUE:
        return _resolve_catalogue(name, cache, report)
    path = Path(name).expanduser()
    if path.exists() or _looks_like_path(name):
        return _resolve_path(path, _stem(path), cache, report, source=str(path.absolute()))
    cached = {model.source_sha256: model for model in cache.models() if model.name == name}
    if len(cached) > 1:
        sources = ", ".join(model.source for model in cached.values())
        raise UnknownModel(f"{name!r} names several models; give a path instead: {sources}")
    for sha256, model in cached.items():
        # Another release of the converter may have made it: then it is made anew.
        current = read_manifest(cache.converted(str(sha256), converter_version()))
        return current or resolve(model.source, cache, report)
    if HUB_ID.fullmatch(name):
        return _resolve_path(fetch_from_hub(name, report), name, cache, report, source=name)
    known = sorted({*CATALOGUE, *(model.name for model in cache.models())})
    raise UnknownModel(
        f"no model named {name!r}{did_you_mean(name, known)}; give one of {', '.join(known)}, "
        "the path of a GGUF file or model folder, or a hub id org/name"
    )


def _resolve_catalogue(name: str, cache: ModelCache, report: Report) -> ResolvedModel:
    entry = CATALOGUE[name]
    model = read_manifest(cache.converted(entry.sha256, converter_version()))
    if model is None:
        blob = fetch(cache, entry, report)
        model = convert_gguf(cache, blob, entry.sha256, name, entry.requirement, report)
    return dataclasses.replace(model, name=name)


def _resolve_path(
    path: Path, name: str, cache: ModelCache, report: Report, source: str
) -> ResolvedModel:
    if path.is_dir():
        return _resolve_folder(path, name, cache, report, source)
    if not path.exists():
        raise UnknownModel(f"{path}: no such file or folder")
    sha256 = cache.content_hash(path)
    model = convert_gguf(cache, path, sha256, name, source, report)
    return dataclasses.replace(model, name=name)


def _resolve_folder(
    folder: Path, name: str, cache: ModelCache, report: Report, source: str
) -> ResolvedModel:
    if converted := read_manifest(folder):
        return converted
    if (folder / "openvino_model.xml").exists():
        return read_ir_folder(folder, name, source)
    if (folder / "config.json").exists() and list(folder.glob("*.safetensors")):
        sha256 = _checkpoint_hash(cache, folder)
        model = export_huggingface(cache, folder, sha256, name, report)
        return dataclasses.replace(model, name=name)
    ggufs = sorted(path.name for path in folder.glob("*.gguf"))
    hint = f"; it holds {', '.join(ggufs)}: give the path of one" if ggufs else ""
    raise UnknownModel(
        f"{folder}: no model in this folder (neither openvino_model.xml, nor config.json "
        f"with *.safetensors){hint}"
    )


def _checkpoint_hash(cache: ModelCache, folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted([folder / "config.json", *folder.glob("*.safetensors")]):
        digest.update(f"{path.name} {cache.content_hash(path)}\n".encode())
    return digest.hexdigest()


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or (name.endswith(".gguf") and ":" not in name)


def _stem(path: Path) -> str:
    return path.stem if path.suffix == ".gguf" else path.absolute().name
