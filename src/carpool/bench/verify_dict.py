"""What `carpool verify` found, as plain data for JSON: seconds, tokens, bytes, shares."""

from dataclasses import asdict
from math import isfinite
from typing import Any

from carpool.bench.plan_check import PlanCheck, Row, last_verdicts
from carpool.planning.as_dict import figure_as_dict


def verify_as_dict(check: PlanCheck) -> dict[str, Any]:
    verified = check.verified
    verdicts = last_verdicts(verified.levels)
    return {
        "holds": check.holds,
        "planned": verified.config.search.planned,
        "tolerance_s": verified.config.search.tolerance_s,
        "capacity": asdict(verified.found),
        "is_resolved": check.is_resolved,
        "ended": verified.ended,
        "engine": check.engine,
        "version": check.version,
        "model": verified.target.model,
        "url": str(verified.target.address),
        "device": check.device,
        "reported": asdict(check.capacity),
        "started_at": verified.started_at,
        "seconds": verified.seconds,
        "prompt_tokens": verified.config.prompt_tokens,
        "output_tokens": verified.config.output_tokens,
        "no_plan": check.no_plan or None,
        "predicted_and_measured": [_row(row) for row in check.rows()],
        "reasons": check.reasons(),
        "at_double": check.degradation(),
        "step_fit": None if check.fit is None else asdict(check.fit),
        "memory": None if verified.memory is None else asdict(verified.memory),
        "overhead_bytes": check.overhead_bytes,
        "levels": [
            _finite(asdict(level)) | {"verdict": verdicts.get(level.concurrency)}
            for level in verified.measured
        ],
        "runs": [
            {"role": level.role, "concurrency": level.concurrency} | level.result.as_dict()
            for level in verified.levels
        ],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "predicted": None if row.predicted is None else figure_as_dict(row.predicted),
        "source": row.source,
        "measured": row.measured,
        "error": row.error,
        "is_off": row.is_off,
    }


def _finite(fields: dict[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: what never came is null."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in fields.items()
    }
