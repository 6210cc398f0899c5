"""What a level measured. Pure: figures of records."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from carpool.bench.distribution import Distribution
from carpool.bench.engine_metrics import EngineChange
from carpool.bench.lag import ClientLag
from carpool.bench.level import Level, Slo
from carpool.bench.record import RequestRecord
from carpool.bench.stamped_socket import is_stamped
from carpool.bench.target import Target

CANCELLED = "cancelled"
"""The error of a request that was in flight when the measurement was stopped: no failure."""


@dataclass(frozen=True)
class LevelResult:
    """`records` are the requests due in the measured window (`begin` to `end`, seconds of
    `time.monotonic`), failed ones too. Throughput counts what happened in the window, whenever
    its request was due. `started_at` is unix time. `ended_by`: the limit that ended it.

    `doubts`: why the figures may be those of the load generator; `notes`: what to know of them.
    """

    level: Level
    target: Target
    started_at: float
    begin: float
    end: float
    records: tuple[RequestRecord, ...]
    num_warm_up: int
    num_cancelled: int
    ended_by: str
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    requests_per_s: float
    mean_in_flight: float
    engine: EngineChange | None
    lag: ClientLag
    doubts: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def window_s(self) -> float:
        return self.end - self.begin

    @property
    def is_certified(self) -> bool:
        return not self.doubts

    @property
    def num_requests(self) -> int:
        return len(self.records)

    @cached_property
    def num_ok(self) -> int:
        return sum(record.is_ok for record in self.records)

    @property
    def num_failed(self) -> int:
        return self.num_requests - self.num_ok

    @cached_property
    def errors(self) -> dict[str, int]:
        """By kind, the most frequent first."""
        return dict(Counter(each.error for each in self.records if each.error).most_common())

    @cached_property
    def error_texts(self) -> dict[str, str]:
        """What was said at the first of each kind."""
        texts: dict[str, str] = {}
        for record in self.records:
            if record.error:
                texts.setdefault(record.error, record.error_text)
        return texts

    @cached_property
    def ttft_ms(self) -> Distribution:
        return self._all(lambda record: record.ttft_ms)

    @cached_property
    def first_answer_ms(self) -> Distribution:
        """Of answers that have more than reasoning."""
        return self._known(lambda record: record.first_answer_ms)

    @cached_property
    def tpot_ms(self) -> Distribution:
        return self._known(lambda record: record.tpot_ms)

    @cached_property
    def itl_ms(self) -> Distribution:
        """Between chunks that hold tokens, all requests together."""
        return Distribution(
            1e3 * (after - before)
            for record in self.records
            if record.is_stream
            for before, after in pairwise(record.token_times)
        )

    @cached_property
    def e2e_ms(self) -> Distribution:
        return self._all(lambda record: record.e2e_ms)

    @cached_property
    def queue_ms(self) -> Distribution:
        return self._known(lambda record: record.queue_ms)

    @cached_property
    def admitted_ttft_ms(self) -> Distribution:
        return self._known(lambda record: record.admitted_ttft_ms)

    @cached_property
    def stream_tokens_per_s(self) -> Distribution:
        return self._known(lambda record: record.tokens_per_s)

    @cached_property
    def num_good(self) -> int:
        return sum(is_good(record, self.level.slo) for record in self.records)

    @property
    def goodput_share(self) -> float:
        """Of all requests."""
        return self.num_good / self.num_requests if self.records else 0.0

    @property
    def goodput_per_s(self) -> float:
        return self.num_good / self.window_s if self.window_s > 0 else 0.0

    def _all(self, figure: Callable[[RequestRecord], float | None]) -> Distribution:
        """A failed request without the figure counts as infinite."""
        values = [figure(record) for record in self.records]
        known = [value for value in values if value is not None]
        return Distribution(known, len(values) - len(known))

    def _known(self, figure: Callable[[RequestRecord], float | None]) -> Distribution:
        values = (figure(record) for record in self.records)
        return Distribution(value for value in values if value is not None)

    def as_dict(self, *, with_requests: bool = False) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "name": self.level.name,
            "load": str(self.level.load),
            "model": self.target.model,
            "url": str(self.target.address),
            "started_at": self.started_at,
            "window_s": self.window_s,
            "ended_by": self.ended_by,
            "num_requests": self.num_requests,
            "num_ok": self.num_ok,
            "num_failed": self.num_failed,
            "num_warm_up": self.num_warm_up,
            "num_cancelled": self.num_cancelled,
            "errors": self.errors,
            "error_texts": self.error_texts,
            "output_tokens_per_s": self.output_tokens_per_s,
            "prompt_tokens_per_s": self.prompt_tokens_per_s,
            "requests_per_s": self.requests_per_s,
            "mean_in_flight": self.mean_in_flight,
            "slo": str(self.level.slo) or None,
            "goodput_share": self.goodput_share,
            "goodput_per_s": self.goodput_per_s,
            **{name: getattr(self, name).as_dict() for name in DISTRIBUTIONS},
            "engine": self.engine.as_dict() if self.engine else None,
            "client_lag": self.lag.as_dict(),
            "is_certified": self.is_certified,
            "doubts": list(self.doubts),
            "notes": list(self.notes),
        }
        if with_requests:
            fields["requests"] = [record.as_dict(self.begin) for record in self.records]
        return fields


DISTRIBUTIONS = (
    "ttft_ms",
    "first_answer_ms",
    "tpot_ms",
    "itl_ms",
    "e2e_ms",
    "queue_ms",
    "admitted_ttft_ms",
    "stream_tokens_per_s",
)


def measure(
    *,
    level: Level,
    target: Target,
    started_at: float,
    begin: float,
    end: float,
    all_records: Sequence[RequestRecord],
    ended_by: str,
    engine: EngineChange | None,
    lag: ClientLag,
) -> LevelResult:
    """The figures of all requests of a level, warm-up included."""
    from carpool.bench.judgement import doubts_of, notes_of

    known = [record for record in all_records if record.error != CANCELLED]
    records = tuple(sorted((each for each in known if each.due >= begin), key=lambda r: r.due))
    if not any(begin <= record.ended <= end for record in known):
        # So few requests that the load ended before the first answer: their time is the window.
        end = max([end, *(record.ended for record in records)])
    window_s = max(1e-9, end - begin)
    ended = [record for record in known if begin <= record.ended <= end and record.is_ok]
    return LevelResult(
        level=level,
        target=target,
        started_at=started_at,
        begin=begin,
        end=max(begin, end),
        records=records,
        num_warm_up=len(known) - len(records),
        num_cancelled=len(all_records) - len(known),
        ended_by=ended_by,
        output_tokens_per_s=_tokens_between(all_records, begin, end) / window_s,
        prompt_tokens_per_s=sum(each.prompt_tokens or 0 for each in ended) / window_s,
        requests_per_s=len(ended) / window_s,
        mean_in_flight=_overlap(all_records, begin, end) / window_s,
        engine=engine,
        lag=lag,
        doubts=tuple(doubts_of(level, records, lag, is_stamped(target.address))),
        notes=tuple(notes_of(records, len(all_records) - len(known))),
    )


def is_good(record: RequestRecord, slo: Slo) -> bool:
    """Whether it came whole and within the limits; a figure it does not have breaks none."""
    if not record.is_ok:
        return False
    figures = (
        (record.ttft_ms, slo.ttft_ms),
        (record.tpot_ms, slo.tpot_ms),
        (record.e2e_ms, slo.e2e_ms),
    )
    return all(ms is None or limit is None or ms <= limit for ms, limit in figures)


def _tokens_between(records: Iterable[RequestRecord], begin: float, end: float) -> float:
    """A request's tokens are spread evenly over the chunks that held some."""
    total = 0.0
    for record in records:
        times = record.token_times
        if times:
            inside = sum(begin <= each <= end for each in times)
            total += record.output_tokens * inside / len(times)
    return total


def _overlap(records: Iterable[RequestRecord], begin: float, end: float) -> float:
    """Seconds that requests were in flight between the two, summed up."""
    return sum(max(0.0, min(end, each.ended) - max(begin, each.due)) for each in records)
