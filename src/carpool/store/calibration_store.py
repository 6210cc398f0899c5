"""Calibrations, the newest for each key: what was measured once need not be assumed again."""

import hashlib
import json
from dataclasses import asdict, fields
from math import isinf
from typing import Any

from sqlalchemy import Row, Select, delete, insert, select, update

from carpool.planning.calibration import Calibration, CalibrationKey, MeasuredLevel
from carpool.store.database import Database
from carpool.store.errors import StoreError
from carpool.store.schema import calibrations

_KEY = tuple(field.name for field in fields(CalibrationKey))
_OWN = ("key", "measured_at", "is_applied")


class CalibrationStore:
    """Every method is one transaction, and raises DatabaseAway or StoreError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, calibration: Calibration) -> None:
        """In place of the one with the same key. What was applied of that one no longer is,
        unless this one is applied."""
        row = asdict(calibration.key) | {
            "calibration_id": _id(calibration.key),
            "measured_at": calibration.measured_at,
            "is_applied": calibration.is_applied,
            "figures": _figures(calibration),
        }
        with self._database.write() as connection:
            connection.execute(
                delete(calibrations).where(calibrations.c.calibration_id == _id(calibration.key))
            )
            connection.execute(insert(calibrations).values(row))

    def apply(self, key: CalibrationKey, is_applied: bool = True) -> None:
        """From the next start on, the gateway admits what was measured. StoreError where
        nothing was."""
        with self._database.write() as connection:
            changed = connection.execute(
                update(calibrations)
                .where(calibrations.c.calibration_id == _id(key))
                .values(is_applied=is_applied)
            )
            if not changed.rowcount:
                raise StoreError(f"there is no calibration of {key.model} on {key.device}")

    def newest(self, **key: str) -> Calibration | None:
        """The last one measured with these parts of the key, such as `engine` and `model`."""
        query = _newest_first()
        for name, value in key.items():
            query = query.where(calibrations.c[name] == value)
        with self._database.read() as connection:
            row = connection.execute(query.limit(1)).one_or_none()
        return None if row is None else _calibration(row)

    def all(self) -> list[Calibration]:
        """The newest first."""
        with self._database.read() as connection:
            return [_calibration(row) for row in connection.execute(_newest_first())]


def _newest_first() -> Select[Any]:
    return select(calibrations).order_by(
        calibrations.c.measured_at.desc(), calibrations.c.calibration_id
    )


def _id(key: CalibrationKey) -> str:
    """A primary key of one column: flags may be longer than an index takes."""
    return hashlib.sha256(json.dumps(asdict(key), sort_keys=True).encode()).hexdigest()[:32]


def _figures(calibration: Calibration) -> dict[str, Any]:
    """All but the key's columns, ready for JSON, which knows no infinity."""
    figures = {name: value for name, value in asdict(calibration).items() if name not in _OWN}
    for level in figures["levels"]:
        if isinf(level["ttft_p99_s"]):
            level["ttft_p99_s"] = None
    return figures


def _calibration(row: Row[Any]) -> Calibration:
    columns = dict(row._mapping)
    figures = columns["figures"]
    levels = [
        level | {"ttft_p99_s": float("inf")} if level["ttft_p99_s"] is None else level
        for level in figures.pop("levels")
    ]
    known = {field.name for field in fields(Calibration)}
    return Calibration(
        key=CalibrationKey(**{name: columns[name] for name in _KEY}),
        measured_at=columns["measured_at"],
        is_applied=columns["is_applied"],
        levels=tuple(MeasuredLevel(**level) for level in levels),
        **{name: value for name, value in figures.items() if name in known},
    )
