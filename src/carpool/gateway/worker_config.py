"""What a worker is told when it starts, and from then on: lines of JSON on its stdin."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from carpool.backends.backend import Backend, BackendState
from carpool.gateway.logs import LogFormat
from carpool.gateway.model_config import ModelConfig
from carpool.scheduling.capacity import Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """An engine that the parent supervises: `url` is one to attach to."""

    name: str
    url: str
    model: str | None
    api_key: str | None
    is_launched: bool

    @classmethod
    def of(cls, backend: Backend) -> "EngineConfig":
        return cls(
            name=backend.name,
            url=f"{backend.kind.value}+{backend.address}",
            model=backend.model,
            api_key=backend.api_key,
            is_launched=backend.command() is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What all workers of a gateway have in common. `listener` is the number of the socket for
    clients, which they inherit; `drain_s` what SIGTERM leaves to what runs."""

    num_workers: int
    models: tuple[ModelConfig, ...]
    database: str
    counters: str
    run_folder: Path
    journal_folder: Path
    needs_keys: bool
    has_access_log: bool
    log_format: LogFormat
    otlp_endpoint: str | None
    listener: int
    tls_cert: Path | None
    tls_key: Path | None
    drain_s: float

    @property
    def figures(self) -> Path:
        """The socket at which the parent shows all workers' figures."""
        return self.run_folder / "figures.sock"

    def figures_of(self, number: int) -> Path:
        """The one at which a worker shows its own."""
        return self.run_folder / f"worker-{number}.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """`engines` are those of each model, in the order of its backends."""

    number: int
    settings: WorkerSettings
    engines: tuple[tuple[EngineConfig, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineNews:
    """What the parent's supervisor says of backend `number` of the model number `model`.
    `engine_model` is what the engine calls its model."""

    model: int
    number: int
    state: BackendState
    capacity: Capacity | None
    engine_model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentNews:
    """A line after the first. `are_keys_new`: they are to be read again now."""

    engine: EngineNews | None = None
    are_keys_new: bool = False


WORKER_CONFIG = TypeAdapter(WorkerConfig)
PARENT_NEWS = TypeAdapter(ParentNews)
