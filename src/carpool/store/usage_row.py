"""One request in the ledger. Never the text of a prompt or an answer."""

from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from carpool.store.lane import Lane


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Times are unix seconds and milliseconds, TTFT and TPOT None where no token came.

    `model` is the name the client asked for. `prompt_tokens` include the `cached_tokens`.
    `usage_source` is "reported" by the engine, or "estimated" where the answer was cut.
    """

    request_id: str
    started_at: float
    person_id: str
    key_id: str
    model: str
    backend: str
    api: str
    lane: Lane
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    usage_source: str
    queue_ms: float
    ttft_ms: float | None
    tpot_ms: float | None
    total_ms: float
    outcome: str
    status: int
    is_stream: bool
    is_fallback: bool


FIELDS = tuple(field.name for field in fields(UsageRow))
as_values = attrgetter(*FIELDS)
"""The values of `FIELDS` of a row."""


def as_columns(row: UsageRow) -> dict[str, Any]:
    return dict(zip(FIELDS, as_values(row), strict=True))
