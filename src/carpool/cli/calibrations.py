"""What was measured on this machine, for the verbs that plan and serve with it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.gateway.model_config import BackendConfig
    from carpool.hardware.device import Device
    from carpool.planning.calibration import Calibration
    from carpool.store.database import Database

CalibrationOption = Annotated[
    bool,
    typer.Option(
        "--calibration/--no-calibration", help="Use what `carpool verify` measured, if it did."
    ),
]


def device_label(device: "Device", count: int = 1) -> str:
    """What a calibration calls it: a CPU by its name and how many of it there are."""
    if not device.is_cpu:
        return device.name if count == 1 else f"{count} x {device.name}"
    name = device.name.removeprefix("this machine (").removesuffix(")")
    return f"{name}, {num_cpus()} CPUs"


def num_cpus() -> int:
    """That this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def flags_label(arguments: Sequence[str]) -> str:
    """An engine's arguments in one form, however they were written."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    pairs: list[list[str]] = []
    for word in words:
        if word.startswith("-") or not pairs:
            pairs.append([word])
        else:
            pairs[-1].append(word)
    return " ".join(sorted("=".join(pair) for pair in pairs))


class Measured:
    """The calibrations of a database, by what `carpool serve` knows of an engine."""

    def __init__(self, database: str | None) -> None:
        self._database = database

    def of(self, backend: "BackendConfig", model: str) -> "Calibration | None":
        """Of an engine that runs, by its address; of one that is to be started, with the same
        arguments on this machine."""
        if "://" in backend.engine:
            return find_calibration(self._database, address=_address(backend.engine))
        from carpool.hardware.probe import probe, this_cpu

        try:
            found = (this_cpu(), 1) if backend.engine == "embedded" else probe()
        except CarpoolError:
            return None
        return find_calibration(
            self._database,
            engine=backend.engine,
            model=backend.model or model,
            device=device_label(*found),
            flags=flags_label(backend.args),
            address="",
        )


def _address(url: str) -> str:
    from carpool.backends.address import Address

    kind, plus, rest = url.partition("+")
    return str(Address.from_url(rest if plus and "/" not in kind else url))


def find_calibration(database: str | None, **key: str) -> "Calibration | None":
    """The newest with these parts of its key. None also where there is no database yet, or one
    that cannot be used now: a plan can be made without."""
    opened = _existing(database)
    if opened is None:
        return None
    from carpool.store.calibration_store import CalibrationStore

    try:
        return CalibrationStore(opened).newest(**key)
    except CarpoolError:
        return None
    finally:
        opened.close()


def _existing(url: str | None) -> "Database | None":
    """A file is not made by looking for one."""
    url = url or os.environ.get("CARPOOL_DATABASE")
    if url is None and not _default_file().is_file():
        return None
    from carpool.store.database import Database, default_database_url

    return Database(url or default_database_url(os.environ))


def _default_file() -> Path:
    """Said once more than in `carpool.store`, which takes a while to import."""
    if home := os.environ.get("CARPOOL_HOME"):
        return Path(home).expanduser().absolute() / "carpool.db"
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser().absolute() / "carpool" / "carpool.db"
