"""One level of load: what is asked of a run."""

from dataclasses import dataclass

from carpool.bench.errors import BenchError
from carpool.bench.load import Load, OpenLoop


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a level; None: no bound. `max_requests` counts measured ones, `max_seconds` the
    time from the end of the warm-up to the last request sent, `max_tokens` what all requests
    together may generate at most, `max_errors` requests that failed."""

    max_requests: int | None = None
    max_seconds: float | None = None
    max_tokens: int | None = None
    max_errors: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_seconds", "max_tokens", "max_errors"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BenchError(f"{name} is {value:g}; give more than 0")


@dataclass(frozen=True, slots=True)
class Slo:
    """A request is good when its answer came whole and within all that is given."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def __bool__(self) -> bool:
        return any(each is not None for each in (self.ttft_ms, self.tpot_ms, self.e2e_ms))

    def __str__(self) -> str:
        named = (("TTFT", self.ttft_ms), ("TPOT", self.tpot_ms), ("end to end", self.e2e_ms))
        return ", ".join(f"{name} <= {ms:g} ms" for name, ms in named if ms is not None)


@dataclass(frozen=True, slots=True)
class Level:
    """`warm_up_s` follows the load's ramp; requests due before its end are not counted.
    `drain_s`: how long those in flight may take after the last was sent. `max_lag_ms`: with a
    99th percentile of the generator's own lag over it, the level is not certified."""

    name: str
    load: Load
    limits: Limits
    warm_up_s: float = 0.0
    drain_s: float = 60.0
    timeout_s: float = 600.0
    slo: Slo = Slo()
    max_lag_ms: float = 5.0
    seed: int = 0

    def __post_init__(self) -> None:
        has_end = self.limits.max_requests or self.limits.max_seconds or self.limits.max_tokens
        if not isinstance(self.load, OpenLoop) and not has_end:
            raise BenchError(f"{self.load} never end; give max_requests or max_seconds")
        if self.warm_up_s < 0 or self.drain_s < 0 or self.timeout_s <= 0:
            raise BenchError("warm-up and drain must not be below 0 s, a timeout must be above")
