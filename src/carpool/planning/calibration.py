"""What was measured of a model on an engine and a device: it replaces what was assumed."""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationKey:
    """What a measurement holds for. `version` and `flags` are empty where nobody said;
    `address` is that of an engine that was attached to, empty for one that was started."""

    engine: str
    version: str
    model: str
    device: str
    flags: str = ""
    address: str = ""


@dataclass(frozen=True, slots=True)
class MeasuredLevel:
    """At a constant `concurrency`: seconds, means unless they say otherwise. `ttft_p99_s` is
    infinite where so many failed; `tokens_per_s` are output tokens of all together."""

    concurrency: int
    num_requests: int
    num_failed: int
    ttft_s: float
    ttft_p99_s: float
    tpot_s: float
    tokens_per_s: float
    requests_per_s: float

    @property
    def stream_tokens_per_s(self) -> float | None:
        """Of one stream after its first token; None where all came at once."""
        return 1 / self.tpot_s if self.tpot_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Figures of one verification.

    A decode step of n sequences takes `step_fixed_s + step_per_seq_s * n` seconds (W + H n), a
    prefill 1 / `prefill_tokens_per_s` a token. `overhead_bytes` is what the engine takes beside
    weights and KV cache. `max_num_seqs` is the capacity: the concurrency up to which the p99
    TTFT is within `tolerance_s`, by requests of `prompt_tokens` and `output_tokens`, with
    `confidence`; `outcome` says how the search for it ended. None: not known.
    `is_applied`: the gateway is to admit no more than that. `planned` is the concurrency that
    was tested, 0 for none.
    """

    key: CalibrationKey
    measured_at: float
    step_fixed_s: float
    step_per_seq_s: float
    prefill_tokens_per_s: float
    overhead_bytes: int | None
    kv_tokens: int | None
    max_num_seqs: int
    outcome: str
    confidence: float
    tolerance_s: float
    prompt_tokens: int
    output_tokens: int
    levels: tuple[MeasuredLevel, ...]
    is_applied: bool = False
    planned: int = 0

    def step_seconds(self, num_seqs: float) -> float:
        return self.step_fixed_s + self.step_per_seq_s * num_seqs

    def prefill_seconds(self, num_tokens: float) -> float:
        return num_tokens / self.prefill_tokens_per_s

    def is_like(self, prompt_tokens: int, output_tokens: int) -> bool:
        """Whether its requests were as long, give or take a twentieth."""
        return all(
            abs(mine - asked) <= 0.05 * asked
            for mine, asked in (
                (self.prompt_tokens, prompt_tokens),
                (self.output_tokens, output_tokens),
            )
        )

    def level_at(self, concurrency: int, seats: int | None = None) -> MeasuredLevel | None:
        """What its own requests would see at that concurrency: on the line between the two
        nearest levels. Above the highest one, as many requests a second are done as there, and
        what does not run on one of `seats` waits. None below, and without levels."""
        levels = sorted(self.levels, key=lambda level: level.concurrency)
        if levels and concurrency > levels[-1].concurrency:
            return _beyond(levels, concurrency, min(concurrency, seats or concurrency))
        for one in levels:
            if one.concurrency == concurrency:
                return one
        for low, high in pairwise(levels):
            if low.concurrency < concurrency < high.concurrency:
                part = (concurrency - low.concurrency) / (high.concurrency - low.concurrency)
                return _between(low, high, part, concurrency)
        return None


def _beyond(levels: list[MeasuredLevel], at: int, running: int) -> MeasuredLevel:
    """By the upper half of the levels: their rate, and their time per token in its line."""
    upper = [one for one in levels if 2 * one.concurrency >= levels[-1].concurrency]
    weights = [one.num_requests or 1 for one in upper]
    rate = _mean([one.requests_per_s for one in upper], weights)
    tokens = _mean([one.tokens_per_s / one.requests_per_s for one in upper], weights)
    per_seq = _mean([one.tpot_s / one.concurrency for one in upper], weights)
    tpot = per_seq * running
    ttft = max(levels[-1].ttft_s, at / rate - tokens * tpot)
    return MeasuredLevel(at, 0, 0, ttft, ttft, tpot, tokens * rate, rate)


def _mean(values: list[float], weights: list[int]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def _between(low: MeasuredLevel, high: MeasuredLevel, part: float, at: int) -> MeasuredLevel:
    """Times of a request grow in a line; what is done a second follows from them."""

    def mean(one: float, other: float) -> float:
        return one + part * (other - one)

    seconds = mean(low.concurrency / low.requests_per_s, high.concurrency / high.requests_per_s)
    tokens = mean(low.tokens_per_s / low.requests_per_s, high.tokens_per_s / high.requests_per_s)
    return MeasuredLevel(
        concurrency=at,
        num_requests=0,
        num_failed=0,
        ttft_s=mean(low.ttft_s, high.ttft_s),
        ttft_p99_s=mean(low.ttft_p99_s, high.ttft_p99_s),
        tpot_s=mean(low.tpot_s, high.tpot_s),
        tokens_per_s=tokens * at / seconds,
        requests_per_s=at / seconds,
    )
