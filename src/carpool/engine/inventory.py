"""The models that have names here: the catalogue, and what the cache holds."""

from typing import TypedDict

from carpool.engine.resolve import UnknownModel
from carpool.models.cache import ModelCache, disk_bytes
from carpool.models.catalogue import CATALOGUE, did_you_mean


class InventoryRow(TypedDict):
    """status: "ready" to serve, "fetched" but not converted, or "not fetched"."""

    name: str
    status: str
    bytes_on_disk: int
    architecture: str
    num_parameters: int
    quantization: str
    max_model_len: int
    source: str
    sha256: str


def inventory(cache: ModelCache) -> list[InventoryRow]:
    """One row per model, catalogue first. Raises `CacheError`."""
    ready = {str(model.source_sha256): model for model in cache.models()}
    rows: list[InventoryRow] = []
    for entry in CATALOGUE.values():
        is_ready = ready.pop(entry.sha256, None) is not None
        is_fetched = cache.blob(entry.sha256).is_file()
        rows.append(
            InventoryRow(
                name=entry.name,
                status="ready" if is_ready else "fetched" if is_fetched else "not fetched",
                bytes_on_disk=_bytes_on_disk(cache, entry.sha256),
                architecture=entry.architecture,
                num_parameters=entry.num_parameters,
                quantization=entry.quantization,
                max_model_len=entry.max_model_len,
                source=entry.requirement,
                sha256=entry.sha256,
            )
        )
    for sha256, model in ready.items():
        rows.append(
            InventoryRow(
                name=model.name,
                status="ready",
                bytes_on_disk=_bytes_on_disk(cache, sha256),
                architecture=model.spec.architecture,
                num_parameters=model.spec.num_parameters,
                quantization=model.spec.quantization,
                max_model_len=model.spec.max_model_len,
                source=model.source,
                sha256=sha256,
            )
        )
    return rows


def remove(cache: ModelCache, name: str) -> int:
    """Delete a named model's files; returns the bytes freed. Raises `UnknownModel`."""
    rows = [row for row in inventory(cache) if row["name"] == name]
    rows = [row for row in rows if row["bytes_on_disk"]]
    if not rows:
        names = [row["name"] for row in inventory(cache) if row["bytes_on_disk"]]
        listed = f"it holds {', '.join(names)}" if names else "it is empty"
        raise UnknownModel(
            f"no model named {name!r} in the cache {cache.home}"
            f"{did_you_mean(name, names)}; {listed}"
        )
    return sum(cache.remove(row["sha256"]) for row in rows)


def _bytes_on_disk(cache: ModelCache, sha256: str) -> int:
    converted = (cache.home / "converted").glob(f"{sha256}-*")
    return sum(disk_bytes(path) for path in [cache.blob(sha256), *converted])
