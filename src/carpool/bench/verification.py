"""Drives an engine at the planned concurrency, at double, and in search of its capacity."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from carpool.bench.capacity_search import CapacitySearch, FoundCapacity, SearchConfig, Verdict
from carpool.bench.errors import BenchError
from carpool.bench.level import Level, Limits, Slo
from carpool.bench.level_result import LevelResult
from carpool.bench.load import FixedConcurrency
from carpool.bench.memory_watch import MemoryUse, MemoryWatch
from carpool.bench.progress import Progress
from carpool.bench.prompts import PromptSource
from carpool.bench.record import RequestRecord
from carpool.bench.run_level import run_level
from carpool.bench.tail import TAIL, quantile, requests_needed
from carpool.bench.target import Target
from carpool.planning.calibration import MeasuredLevel

ALONE_REQUESTS = 13
ALONE_S = 8.0
SHORTEST_S = 3.0
"""A window shorter than this is not worth its ramp."""
USUAL_S = 10.0
"""Of a level that is expected to fail: it is there to show how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """`prompt_tokens` and `output_tokens` are means of what is asked; all levels together
    take at most about `budget_s` seconds."""

    search: SearchConfig
    prompt_tokens: int
    output_tokens: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class DrivenLevel:
    """`role`: "alone", "planned", "double" or "search"; `verdict` is by all samples of that
    concurrency so far."""

    role: str
    concurrency: int
    result: LevelResult
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What was measured, also where it was cut short: `ended` says by what, None if by
    nothing."""

    target: Target
    config: VerifyConfig
    started_at: float
    seconds: float
    levels: tuple[DrivenLevel, ...]
    found: FoundCapacity
    memory: MemoryUse | None
    ended: str | None

    @property
    def measured(self) -> tuple[MeasuredLevel, ...]:
        """A level for each concurrency, what was repeated taken together."""
        by_concurrency: dict[int, list[LevelResult]] = {}
        for level in self.levels:
            by_concurrency.setdefault(level.concurrency, []).append(level.result)
        found = (together(number, results) for number, results in by_concurrency.items())
        return tuple(sorted((one for one in found if one), key=lambda one: one.concurrency))

    def level(self, concurrency: int) -> MeasuredLevel | None:
        return next((one for one in self.measured if one.concurrency == concurrency), None)

    @property
    def planned(self) -> MeasuredLevel | None:
        return self.level(self.config.search.planned)

    @property
    def double(self) -> MeasuredLevel | None:
        return self.level(2 * self.config.search.planned)

    @property
    def mean_prompt_tokens(self) -> float | None:
        """As the engine counts them; None if it does not say."""
        counts = [
            record.prompt_tokens
            for level in self.levels
            for record in level.result.records
            if record.prompt_tokens
        ]
        return fmean(counts) if counts else None


class Verification:
    """`on_level` gets each level as it is done, `on_progress` what runs. `check_alive` raises
    BenchError for an engine that is gone; it is asked when most requests of a level failed."""

    def __init__(
        self,
        target: Target,
        prompts: PromptSource,
        config: VerifyConfig,
        *,
        watch: MemoryWatch,
        check_alive: Callable[[], Awaitable[None]],
        on_level: Callable[[DrivenLevel], None] = lambda level: None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.target = target
        self.config = config
        self._prompts = prompts
        self._watch = watch
        self._check_alive = check_alive
        self._on_level = on_level
        self._on_progress = on_progress
        self._search = CapacitySearch(config.search)
        self._levels: list[DrivenLevel] = []
        self._ended: str | None = None
        self._deadline = 0.0

    async def run(self, stop: asyncio.Event) -> Verified:
        """Until all is known, the budget is spent, the engine is gone or `stop` is set. Raises
        BenchError only if nothing was measured."""
        began, started_at = time.monotonic(), time.time()
        self._deadline = began + self.config.budget_s
        async with self._watch.watching():
            try:
                await self._drive_all(stop)
            except BenchError as error:
                if not self._levels:
                    raise
                self._ended = f"the engine no longer answers: {error}"
        return Verified(
            target=self.target,
            config=self.config,
            started_at=started_at,
            seconds=time.monotonic() - began,
            levels=tuple(self._levels),
            found=self._search.found(),
            memory=self._watch.use,
            ended=self._ended,
        )

    async def _drive_all(self, stop: asyncio.Event) -> None:
        await self._drive("alone", 1, stop)
        while self._ended is None and (number := self._search.next_level()) is not None:
            planned = self.config.search.planned
            role = {planned: "planned", 2 * planned: "double"}.get(number, "search")
            if self._window(number) is None:
                self._ended = f"the budget of {self.config.budget_s:g} s is spent"
                return
            await self._drive(role, number, stop)

    async def _drive(self, role: str, number: int, stop: asyncio.Event) -> None:
        result = await run_level(
            self.target,
            self._level(role, number),
            self._prompts,
            on_progress=self._on_progress,
            stop=stop,
        )
        if stop.is_set():
            self._ended = "stopped"
        if not result.num_requests:
            return
        is_whole = not stop.is_set()
        verdict = Verdict.UNSURE
        if role != "alone" and is_whole:
            verdict = self._search.observe(number, first_tokens(result))
        level = DrivenLevel(role, number, result, verdict)
        self._levels.append(level)
        self._on_level(level)
        if is_whole and 2 * result.num_failed >= result.num_requests:
            await self._check_alive()

    # ------------------------------------------------------------- how long

    def _level(self, role: str, number: int) -> Level:
        slo = Slo(ttft_ms=1e3 * self.config.search.tolerance_s)
        if role == "alone":
            limits = Limits(max_requests=ALONE_REQUESTS, max_seconds=ALONE_S)
            return Level("alone", FixedConcurrency(1), limits, warm_up_s=0.5, slo=slo)
        cycle = self._cycle(number)
        needed = requests_needed(self.config.search.confidence)
        return Level(
            f"{number} at once",
            FixedConcurrency(number, ramp_s=min(cycle, 0.2 * self.config.budget_s)),
            Limits(max_requests=needed + number, max_seconds=self._window(number)),
            warm_up_s=cycle if role in ("planned", "double") else 0.0,
            drain_s=30 + 3 * cycle,
            slo=slo,
        )

    def _window(self, number: int) -> float | None:
        """Seconds in which a level's requests are sent: enough for a verdict, or for a look
        where that is clear, and then as long again as a request takes (see `counted`); None if
        the budget has none left."""
        cycle = self._cycle(number)
        needed = requests_needed(self.config.search.confidence) * cycle / number
        wanted = max(USUAL_S, cycle, 0.0 if self._looks_slow(number) else 2 * needed) + cycle
        left = self._deadline - time.monotonic() - 3 * cycle
        return min(wanted, left) if left >= SHORTEST_S + cycle else None

    def _cycle(self, number: int) -> float:
        """Expected seconds of a request among so many, by the levels so far: more than any
        share of what the next lower one took, for one more waits for all others' prefills."""
        known = _seconds_by_concurrency(self._levels)
        if not known:
            return ALONE_S
        below = max((each for each in known if each <= number), default=min(known))
        above = min((each for each in known if each >= number), default=None)
        if above is not None and above > below:
            part = (number - below) / (above - below)
            return known[below] + part * (known[above] - known[below])
        if below == 1:
            alone = self._levels[0].result
            return known[1] + 0.5 * (number - 1) * (alone.ttft_ms.mean or 0.0) / 1e3
        return known[below] * max(1.0, number / below)

    def _looks_slow(self, number: int) -> bool:
        """Whether the level is as good as sure to fail: far above where the capacity was the last
        time, or above one that failed, of which it has the TTFT and its share more."""
        hint = self.config.search.hint
        if hint is not None and number > 1.3 * hint:
            return True
        return any(
            level.verdict is Verdict.FAILS
            and (level.result.ttft_ms.p99.value or 0.0) * number
            > 2e3 * self.config.search.tolerance_s * level.concurrency
            for level in self._levels
            if level.concurrency < number
        )


def counted(result: LevelResult) -> Sequence[RequestRecord]:
    """Without the last ones: with n in flight at any time, the last n that were sent keep the
    load up for those before them, and themselves run in ever less company."""
    num_streams = result.level.load.size if isinstance(result.level.load, FixedConcurrency) else 0
    if result.ended_by == "stopped" or result.num_requests <= num_streams:
        return result.records
    return result.records[: result.num_requests - num_streams]


def first_tokens(result: LevelResult) -> list[float]:
    """Seconds to the first token of each counted request; infinite for one that failed, also
    later."""
    return [
        record.ttft_ms / 1e3 if record.is_ok and record.ttft_ms is not None else inf
        for record in counted(result)
    ]


def together(concurrency: int, results: Sequence[LevelResult]) -> MeasuredLevel | None:
    """Runs at one concurrency as one level; None where no request came through."""
    records = [record for result in results for record in counted(result)]
    done = [record for record in records if record.is_ok]
    ttfts = [record.ttft_ms for record in done if record.ttft_ms is not None]
    tpots = [record.tpot_ms for record in done if record.tpot_ms is not None]
    if not ttfts or not tpots:
        return None
    everything = sorted(value for result in results for value in first_tokens(result))
    return MeasuredLevel(
        concurrency=concurrency,
        num_requests=len(records),
        num_failed=len(records) - len(done),
        ttft_s=fmean(ttfts) / 1e3,
        ttft_p99_s=quantile(everything, 1 - TAIL),
        tpot_s=fmean(tpots) / 1e3,
        tokens_per_s=_mean_rate(results, lambda result: result.output_tokens_per_s),
        requests_per_s=_mean_rate(results, lambda result: result.requests_per_s),
    )


def _mean_rate(results: Iterable[LevelResult], rate: Callable[[LevelResult], float]) -> float:
    """By the time that each took."""
    pairs = [(rate(result), result.window_s) for result in results]
    return sum(each * seconds for each, seconds in pairs) / sum(s for _, s in pairs)


def _seconds_by_concurrency(levels: Iterable[DrivenLevel]) -> dict[int, float]:
    """Mean seconds of a whole request."""
    found = {}
    for level in levels:
        done = [each.e2e_ms for each in counted(level.result) if each.e2e_ms is not None]
        if done:
            found[level.concurrency] = fmean(done) / 1e3
    return found
