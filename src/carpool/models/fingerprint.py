"""What a model's files are, so that an upgrade can tell that it still is the same model."""

import hashlib
from pathlib import Path

from carpool.models.cache import ModelCache

_SUFFIXES = (".safetensors", ".gguf", ".bin", ".xml", ".json", ".jinja", ".txt", ".model")


def model_sha256(model: str, cache: ModelCache) -> str | None:
    """Of a file; of a folder's files that make a model, with their names; of what a model in
    Carpool's own cache was made from. None for what is not on this machine. Raises CacheError."""
    path = Path(model).expanduser()
    if path.is_file():
        return cache.content_hash(path)
    if path.is_dir():
        files = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
        lines = [f"{each.name} {cache.content_hash(each)}\n" for each in files if each.is_file()]
        return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None
    return next((each.source_sha256 for each in cache.models() if each.name == model), None)
