"""What to think of a level's figures. Pure."""

from collections.abc import Iterator, Sequence

from carpool.bench.distribution import Distribution
from carpool.bench.lag import ClientLag
from carpool.bench.level import Level
from carpool.bench.load import OpenLoop
from carpool.bench.record import RequestRecord

MAX_STALL_MS = 100.0
MAX_CPU_SHARE = 0.95
MAX_IDLE_SHARE = 0.02


def doubts_of(
    level: Level, records: Sequence[RequestRecord], lag: ClientLag, is_stamped: bool
) -> Iterator[str]:
    """Why the load generator may have been the bottleneck. `is_stamped`: the kernel said when
    bytes arrived."""
    allowed_ms = _allowed_lag_ms(level, records, is_stamped)
    if lag.p99_ms > allowed_ms:
        yield (
            f"the load generator was {lag.p99_ms:.1f} ms late at its 99th percentile "
            f"(over {allowed_ms:.3g} ms)"
        )
    if lag.max_ms > max(MAX_STALL_MS, allowed_ms):
        yield f"the load generator stood still for {lag.max_ms:.0f} ms"
    if lag.cpu_share > MAX_CPU_SHARE:
        yield f"the load generator used {lag.cpu_share:.0%} of its core"
    num_client = sum(record.error == "client" for record in records)
    if num_client:
        yield f"{num_client} requests could not be sent: {_first_text(records, 'client')}"


def notes_of(records: Sequence[RequestRecord], num_cancelled: int) -> Iterator[str]:
    """What a reader of the figures must know."""
    answered = [record for record in records if record.is_ok]
    ttft = Distribution([each.ttft_ms for each in records if each.ttft_ms is not None])
    if records and not ttft.p99.is_resolved:
        yield (
            f"{ttft.count} requests are too few for a 99th percentile: the true one may be any "
            "higher (368 would do)"
        )
    if num_silent := sum(not each.is_usage_reported for each in answered):
        yield (
            f"{num_silent} of {len(answered)} answers report no usage: their output tokens are "
            "counted by chunks, which may hold several"
        )
    short = [each for each in answered if each.asks_for_all and _is_short(each)]
    if short:
        yield (
            f"{len(short)} of {len(answered)} answers ended before the tokens asked for: the "
            "endpoint ignores ignore_eos"
        )
    if num_whole := sum(not each.is_stream for each in answered):
        yield f"{num_whole} answers came in one piece: their first token is their end"
    if num_cancelled:
        yield f"{num_cancelled} requests were in flight at the stop and are not counted"


def _allowed_lag_ms(level: Level, records: Sequence[RequestRecord], is_stamped: bool) -> float:
    """Where requests have no time they are due at, and the kernel says when answers came, lag
    is in no figure: it only keeps a stream from its next request, for so small a part of the
    time as is allowed here."""
    if isinstance(level.load, OpenLoop) or not is_stamped:
        return level.max_lag_ms
    median_ms = Distribution([each.e2e_ms for each in records if each.e2e_ms is not None]).p50
    return max(level.max_lag_ms, MAX_IDLE_SHARE * (median_ms.value or 0.0))


def _is_short(record: RequestRecord) -> bool:
    return record.is_usage_reported and record.output_tokens < record.max_tokens


def _first_text(records: Sequence[RequestRecord], error: str) -> str:
    return next(record.error_text for record in records if record.error == error)
