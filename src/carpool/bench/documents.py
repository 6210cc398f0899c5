"""Results as a JSON document and as CSV."""

import csv
import io
from typing import Any

from carpool import __version__
from carpool.bench.bench_run import BenchRun


def as_document(run: BenchRun, *, with_requests: bool = True) -> dict[str, Any]:
    return {
        "carpool": __version__,
        "url": str(run.target.address),
        "model": run.target.model,
        "api": run.target.api.value,
        "is_stopped": run.is_stopped,
        "trouble": run.trouble,
        "notes": list(run.notes),
        "levels": [result.as_dict(with_requests=with_requests) for result in run.results],
    }


def as_csv(run: BenchRun) -> str:
    """A line a measured request, with a header; times in milliseconds, `due_ms` since the
    warm-up's end."""
    text = io.StringIO()
    writer = None
    for result in run.results:
        for record in result.records:
            fields = {"level": result.level.name, **record.as_dict(result.begin)}
            if writer is None:
                writer = csv.DictWriter(text, list(fields), lineterminator="\n")
                writer.writeheader()
            writer.writerow({name: _safe(value) for name, value in fields.items()})
    return text.getvalue()


def _safe(value: Any) -> Any:
    """Text of a server must not be a formula to whoever opens the file as a spreadsheet."""
    is_formula = isinstance(value, str) and value[:1] in "=+-@\t\r" and value
    return f"'{value}" if is_formula else value
