"""What the requests of a time were like, in one pass over them."""

import math
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

HOUR_S = 3600.0


class Row(Protocol):
    """As the ledger has it: milliseconds, unix seconds."""

    @property
    def started_at(self) -> float: ...
    @property
    def person_id(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def queue_ms(self) -> float: ...
    @property
    def ttft_ms(self) -> float | None: ...
    @property
    def total_ms(self) -> float: ...
    @property
    def outcome(self) -> str: ...
    @property
    def status(self) -> int: ...
    @property
    def is_stream(self) -> bool: ...


@dataclass(slots=True)
class Use:
    """Of a person or a model."""

    requests: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def add(self, row: Row) -> None:
        self.requests += 1
        self.failed += row.status >= 400
        self.prompt_tokens += row.prompt_tokens
        self.output_tokens += row.output_tokens


@dataclass(slots=True)
class Summary:
    """Hours are counted from `since`, unix seconds, on. `by_hour` counts requests by the one they
    began in; `served_hours` are those in which somebody was served. TTFT is that of streams, in
    seconds."""

    since: float
    use: Use = field(default_factory=Use)
    cached_tokens: int = 0
    people: dict[str, Use] = field(default_factory=dict)
    models: dict[str, Use] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    by_hour: Counter[int] = field(default_factory=Counter)
    served_hours: set[int] = field(default_factory=set)
    ttft: "array[float]" = field(default_factory=lambda: array("d"))
    queue_wait: "array[float]" = field(default_factory=lambda: array("d"))
    hour_ttft: "dict[int, array[float]]" = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.use.add(row)
        self.cached_tokens += row.cached_tokens
        self.people.setdefault(row.person_id, Use()).add(row)
        self.models.setdefault(row.model, Use()).add(row)
        self.outcomes[row.outcome] += 1
        hour = self._hour(row.started_at)
        self.by_hour[hour] += 1
        if row.status >= 400:
            return
        end = row.started_at + row.total_ms / 1000
        self.served_hours.update(range(hour, self._hour(end) + 1))
        self.queue_wait.append(row.queue_ms / 1000)
        if row.is_stream and row.ttft_ms is not None:
            self.ttft.append(row.ttft_ms / 1000)
            self.hour_ttft.setdefault(hour, array("d")).append(row.ttft_ms / 1000)

    def _hour(self, moment: float) -> int:
        return int((moment - self.since) // HOUR_S)


def summarise(rows: Iterable[Row], since: float) -> Summary:
    summary = Summary(since)
    for row in rows:
        summary.add(row)
    return summary


def quantile(values: "array[float]", share: float) -> float | None:
    """The least value that so large a share is not above; None of none."""
    if not values:
        return None
    ordered: list[float] = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
