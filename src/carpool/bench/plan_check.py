"""A plan held against what was measured: which figures were off, and why. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from carpool.bench.capacity_search import Outcome, Verdict
from carpool.bench.prediction import Prediction
from carpool.bench.step_fit import StepFit
from carpool.bench.verification import DrivenLevel, Verified
from carpool.planning.calibration import Calibration, MeasuredLevel
from carpool.planning.figure import Figure
from carpool.planning.plan import Plan
from carpool.scheduling.capacity import Capacity, Provenance

OFF = 0.1
"""A share by which a figure may miss before it is called off."""


@dataclass(frozen=True, slots=True)
class Row:
    """`predicted` and `measured` are in `unit`; None: nobody said. `source`: whose prediction."""

    name: str
    unit: str
    predicted: Figure | None
    measured: float | None
    source: str = ""

    @property
    def error(self) -> float | None:
        """Of the prediction, as a share of what was measured."""
        if self.predicted is None or not self.measured:
            return None
        return self.predicted.value / self.measured - 1

    @property
    def is_off(self) -> bool:
        """Outside of its own range, and by more than a tenth."""
        if self.error is None or self.predicted is None or self.measured is None:
            return False
        is_within = self.predicted.low <= self.measured <= self.predicted.high
        return abs(self.error) > OFF and not is_within


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCheck:
    """`plan` is None where nothing is known of the model or the device (`no_plan` says why);
    `predictions` are of the planned concurrency and of double. `capacity` is what the engine
    reports. `before` was measured earlier, `calibration` now."""

    verified: Verified
    engine: str
    version: str
    device: str
    capacity: Capacity
    plan: Plan | None
    no_plan: str
    predictions: tuple[Prediction | None, Prediction | None]
    fit: StepFit | None
    before: Calibration | None
    calibration: Calibration | None
    overhead_bytes: int | None

    @property
    def holds(self) -> bool:
        """The planned concurrency is within the tolerance, surely."""
        planned = self.verified.config.search.planned
        found = self.verified.found
        return found.low >= planned and self.verified.ended != "stopped"

    @property
    def is_resolved(self) -> bool:
        return self.verified.found.outcome in (Outcome.RESOLVED, Outcome.AT_LEAST)

    def rows(self) -> list[Row]:
        """What was predicted, held against what was measured."""
        said, planned = self.capacity, self.verified.config.search.planned
        is_said = said.provenance is not Provenance.PREDICTED
        plan = self.plan
        rows = [
            Row(
                "KV cache", "tokens",
                None if plan is None else Figure.exact(
                    plan.pool.kv_tokens, plan.memory.kv_cache.known
                ),
                said.kv_tokens if is_said else None, "the plan",
            ),
            Row(
                "sequences at once", "",
                None if plan is None or plan.people is None else Figure.exact(
                    plan.people.num_seats, plan.seqs_at_context.known
                ),
                said.max_num_seqs if is_said else None, "the plan",
            ),
        ]  # fmt: skip
        for number, prediction in zip((planned, 2 * planned), self.predictions, strict=True):
            rows += _level_rows(number, prediction, self.verified.level(number))
        return rows

    def reasons(self) -> list[str]:
        """Why figures were off, the weightiest first."""
        return [*self._of_memory(), *self._of_lengths(), *self._of_steps(), *self._of_queues()]

    def degradation(self) -> str | None:
        """What double the planned load does; None if it was not measured."""
        at, double = self.verified.planned, self.verified.double
        if at is None or double is None or not at.tokens_per_s:
            return None
        seats = self.capacity.max_num_seqs
        waits = ""
        if double.concurrency > seats:
            waits = f"; {double.concurrency - seats} of them wait for one of {seats} seats"
        failed = double.num_failed
        does = (
            "it queues and slows rather than fails"
            if not failed
            else f"{failed} of {double.num_requests} requests fail"
        )
        return (
            f"at {double.concurrency} at once {does}: first tokens after {double.ttft_s:.2g} s "
            f"instead of {at.ttft_s:.2g} s, {_rate(double)} tokens/s each instead of "
            f"{_rate(at)}, {double.tokens_per_s / at.tokens_per_s:.0%} of the "
            f"throughput{waits}"
        )

    # ------------------------------------------------------------------ reasons

    def _of_memory(self) -> Iterator[str]:
        row = self.rows()[0]
        if row.is_off and row.predicted is not None and row.measured is not None:
            yield (
                f"KV cache: the engine has {row.measured:,.0f} tokens, {row.predicted.value:,.0f} "
                "were planned: another share of the memory, or other memory free, than planned"
            )
        preempted = [
            (level.concurrency, engine.preemptions)
            for level in self.verified.levels
            if (engine := level.result.engine) is not None and engine.preemptions
        ]
        if preempted:
            number, count = preempted[0]
            yield f"KV cache: full at {number} at once, {count} requests lost their place in it"

    def _of_lengths(self) -> Iterator[str]:
        asked, counted = self.verified.config.prompt_tokens, self.verified.mean_prompt_tokens
        if counted is None:
            yield "context: the engine reports no usage, so that lengths are not checked"
        elif abs(counted / asked - 1) > OFF:
            word = "longer" if counted > asked else "shorter"
            yield (
                f"context: prompts were {word} than planned, {counted:.0f} tokens on average "
                f"instead of {asked}"
            )

    def _of_steps(self) -> Iterator[str]:
        speed = None if self.plan is None else self.plan.speed
        alone = self.verified.level(1)
        if speed is None or alone is None:
            return
        pairs = (
            ("step time", speed.step_seconds(1), alone.tpot_s, "ms a step alone"),
            (
                "prefill",
                speed.prefill_seconds(self.verified.config.prompt_tokens),
                alone.ttft_s,
                "ms for a prompt alone",
            ),
        )
        for name, planned, measured, unit in pairs:
            if measured and abs(planned / measured - 1) > OFF:
                word = "slower" if measured > planned else "faster"
                yield (
                    f"{name}: this machine is {word}, {1e3 * measured:.3g} {unit} instead of "
                    f"{1e3 * planned:.3g}"
                )

    def _of_queues(self) -> Iterator[str]:
        alone, at = self.verified.level(1), self.verified.planned
        if alone is None or at is None or at.ttft_s < 1.5 * alone.ttft_s:
            return
        yield (
            f"queue: of {at.ttft_s:.2g} s to a first token at {at.concurrency} at once, "
            f"{at.ttft_s - alone.ttft_s:.2g} s pass behind the prompts and steps of others"
        )


def _level_rows(
    number: int, prediction: Prediction | None, level: MeasuredLevel | None
) -> list[Row]:
    def row(name: str, unit: str, predicted: Figure | None, measured: float | None) -> Row:
        source = "" if prediction is None else prediction.source
        return Row(f"{name} at {number}", unit, predicted, measured, source)

    return [
        row(
            "TTFT, mean,",
            "s",
            None if prediction is None else prediction.ttft_s,
            None if level is None else level.ttft_s,
        ),
        row(
            "tokens/s each",
            "",
            None if prediction is None else prediction.stream_tokens_per_s,
            None if level is None else level.stream_tokens_per_s,
        ),
        row(
            "tokens/s in all",
            "",
            None if prediction is None else prediction.tokens_per_s,
            None if level is None else level.tokens_per_s,
        ),
    ]


def _rate(level: MeasuredLevel) -> str:
    rate = level.stream_tokens_per_s
    return "all" if rate is None else f"{rate:.3g}"


def last_verdicts(levels: tuple[DrivenLevel, ...]) -> dict[int, Verdict]:
    """Of each concurrency, by all of its samples; none for what ran alone to get to know it."""
    return {level.concurrency: level.verdict for level in levels if level.role != "alone"}
