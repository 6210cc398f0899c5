"""carpool.lock: which version of which engine serves a model, as `carpool upgrade` left it.

For each model there are the engines that were configured when it was first upgraded, those that
serve now with the ones before them, and a candidate that is being tried. What is configured
otherwise later goes before the lock. Whoever can write the file can have programs run.
"""

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from carpool.errors import CarpoolError
from carpool.gateway.model_config import BackendConfig, ModelConfig

FORMAT = 1


class LockError(CarpoolError):
    """The lock file cannot be read or written, or does not say what is needed of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """An engine as it was started. `model_sha256` is of the model's files (see
    `models.fingerprint`), `engine_version` what the engine said of itself."""

    backend: BackendConfig
    model_sha256: str | None = None
    engine_version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One replica: what serves, and what did before."""

    current: Pin
    previous: Pin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPins:
    configured: tuple[BackendConfig, ...]
    engines: tuple[Pinned, ...]
    candidate: Pin | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    models: dict[str, ModelPins] = field(default_factory=dict)
    carpool_lock: int = FORMAT


_LOCK = TypeAdapter(Lock)


class LockFile:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def read(self) -> Lock:
        """An empty one where there is no file. Raises LockError."""
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return Lock()
        except OSError as error:
            raise LockError(f"cannot read {self.path}: {error.strerror or error}") from None
        try:
            lock = _LOCK.validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise LockError(f"{self.path}: {where}: {first['msg']}") from None
        except CarpoolError as error:
            raise LockError(f"{self.path}: {error}") from None
        if lock.carpool_lock != FORMAT:
            raise LockError(
                f"{self.path} has the format {lock.carpool_lock} of another Carpool, not {FORMAT}"
            )
        return lock

    def pins(self, model: ModelConfig) -> ModelPins:
        """Of a model as it is configured; what the lock says of another configuration does not
        count. Raises LockError."""
        found = self.read().models.get(model.name)
        if found is not None and found.configured == model.backends:
            return found
        engines = tuple(Pinned(current=Pin(backend=each)) for each in model.backends)
        return ModelPins(configured=model.backends, engines=engines)

    def pinned(self, models: Sequence[ModelConfig]) -> tuple[ModelConfig, ...]:
        """The models with the engines that the lock has for them. Raises LockError."""
        return tuple(
            replace(
                model,
                backends=tuple(each.current.backend for each in self.pins(model).engines),
            )
            for model in models
        )

    def set_candidate(self, model: ModelConfig, candidate: Pin | None) -> None:
        """Raises LockError."""
        with self._changing() as models:
            models[model.name] = replace(self.pins(model), candidate=candidate)

    def promote(self, model: ModelConfig, number: int) -> None:
        """The candidate is engine `number` from now on. Raises LockError."""
        with self._changing() as models:
            pins = self.pins(model)
            if pins.candidate is None:
                raise LockError(f"{self.path} has no candidate for {model.name}")
            engines = list(pins.engines)
            engines[number] = Pinned(current=pins.candidate, previous=engines[number].current)
            models[model.name] = replace(pins, engines=tuple(engines), candidate=None)

    @contextmanager
    def _changing(self) -> Iterator[dict[str, ModelPins]]:
        """The models, to be changed; written whole and at once, by one process at a time."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LockError(f"cannot write {self.path}: {error.strerror or error}") from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            models = dict(self.read().models)
            yield models
            self._write(Lock(models=models))
        finally:
            os.close(descriptor)

    def _write(self, lock: Lock) -> None:
        text = json.dumps(_LOCK.dump_python(lock, mode="json"), indent=2) + "\n"
        try:
            with tempfile.NamedTemporaryFile(
                "w", dir=self.path.parent, prefix=f".{self.path.name}-", delete=False
            ) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, self.path)
        except OSError as error:
            raise LockError(f"cannot write {self.path}: {error.strerror or error}") from None
