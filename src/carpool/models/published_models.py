"""Models that people serve, planned by name without a file or a network.

`published_models.json` holds the parts of each config.json that memory depends on, with
their source; what nobody has checked against one is marked as assumed.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from carpool.models.config_shape import shape_from_config
from carpool.models.shape import ModelShape

_FILE = Path(__file__).with_name("published_models.json")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """`id` is the name on the Hugging Face hub. `is_assumed`: no source has these dimensions."""

    id: str
    shape: ModelShape
    source: str
    is_assumed: bool = False


@cache
def _entries() -> dict[str, dict[str, object]]:
    entries = json.loads(_FILE.read_text(encoding="utf-8"))
    return {entry["id"].lower(): entry for entry in entries}


def published_names() -> list[str]:
    return [str(entry["id"]) for entry in _entries().values()]


@cache
def find_published(name: str) -> PublishedModel | None:
    """By its id on the hub, or the part after the slash; case does not matter."""
    wanted = name.lower()
    for key, entry in _entries().items():
        if wanted in (key, key.split("/")[1]):
            return _published(entry)
    return None


def _published(entry: dict[str, object]) -> PublishedModel:
    name, config = str(entry["id"]), entry["config"]
    if not isinstance(config, dict):
        raise TypeError(f"{_FILE}: {name} has no config")
    shape = shape_from_config(config, name)
    counts = shape.parameters
    if isinstance(vision := entry.get("vision_parameters"), int):
        counts = replace(counts, vision=vision)
    if isinstance(dense := entry.get("dense_parameters"), int):
        counts = replace(counts, dense=dense)
    return PublishedModel(
        name,
        replace(shape, parameters=counts),
        str(entry["source"]),
        is_assumed=bool(entry.get("assumed")),
    )
