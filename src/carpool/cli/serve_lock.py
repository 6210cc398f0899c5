"""The lock file, as `carpool serve` reads it."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from carpool.gateway.lock_file import LockFile
    from carpool.gateway.model_config import ModelConfig


def pinned_models(
    lock: "LockFile", configured: "Sequence[ModelConfig]"
) -> "tuple[ModelConfig, ...]":
    """The models with the engines that the lock has for them. A model whose files are others
    than those that were tried is served all the same, with a word. Raises LockError."""
    from carpool.models.cache import ModelCache, default_home
    from carpool.models.fingerprint import model_sha256

    cache = ModelCache(default_home(os.environ))
    for model in configured:
        for engine in lock.pins(model).engines:
            pin = engine.current
            name = pin.backend.model or model.name
            if pin.model_sha256 is None:
                continue
            if model_sha256(name, cache) not in (None, pin.model_sha256):
                typer.echo(
                    f"carpool: the files of {name} are not those that {lock.path} was written "
                    "for: `carpool upgrade` tried others",
                    err=True,
                )
    return lock.pinned(configured)
