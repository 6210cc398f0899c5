"""Runs one level of load and measures it."""

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from statistics import median

from carpool.bench.engine_watch import EngineWatch
from carpool.bench.errors import BenchError
from carpool.bench.lag import LagMeter, lag_measured
from carpool.bench.level import Level
from carpool.bench.level_result import CANCELLED, LevelResult, measure
from carpool.bench.load import ClosedLoop, FixedConcurrency, Load, OpenLoop
from carpool.bench.progress import Progress
from carpool.bench.prompts import Prompt, PromptSource
from carpool.bench.record import RequestRecord
from carpool.bench.sender import Sender
from carpool.bench.target import Target

OnProgress = Callable[[Progress], None]
PROGRESS_INTERVAL_S = 0.5
MAX_PAUSE_S = 5.0
_HEAD_START_S = 0.01
_clock = time.monotonic


async def run_level(
    target: Target,
    level: Level,
    prompts: PromptSource,
    *,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
    temperature: float | None = None,
) -> LevelResult:
    """Measures `level`; failed requests are records of the result.

    Prompts are salted anew at each call, unless they are shared. Once `stop` is set nothing is
    sent any more, and what is in flight is cancelled and not counted. Raises BenchError where
    nothing was answered at all.
    """
    salt = "" if prompts.is_shared else f"{level.name}/{secrets.token_hex(8)}"
    salted = prompts.salted(salt)
    first = salted.session(0)
    if first is None or first.next(None) is None:
        raise BenchError("there are no prompts to send")
    run = _Run(target, level, salted, stop or asyncio.Event(), temperature)
    result = await run.measured(on_progress)
    if not result.num_ok and result.ended_by != "stopped":
        raise BenchError(_why_nothing(result))
    return result


def _why_nothing(result: LevelResult) -> str:
    for record in result.records:
        return f"{result.target}: all requests failed: {record.error}: {record.error_text}"
    return (
        f"no request was due after the ramp and the warm-up of {result.level.warm_up_s:g} s; "
        "give more seconds or less warm-up"
    )


class _Run:
    def __init__(
        self,
        target: Target,
        level: Level,
        prompts: PromptSource,
        stop: asyncio.Event,
        temperature: float | None,
    ) -> None:
        self._target = target
        self._level = level
        self._prompts = prompts
        self._stop = stop
        self._sender = Sender(target, level.timeout_s, temperature)
        self._rng = random.Random(f"{level.seed}/think")  # noqa: S311
        self._records: list[RequestRecord] = []
        self._counts = _Counts()
        self._num_sessions = 0
        self._closed = asyncio.Event()
        self._ended_by = ""
        self._sleepers: set[asyncio.Future[None]] = set()
        self._begin = self._end = 0.0

    async def measured(self, on_progress: OnProgress | None) -> LevelResult:
        started_at = time.time()
        async with EngineWatch(self._target) as engine:
            with lag_measured() as lag:
                start = _clock() + _HEAD_START_S
                self._begin = start + self._level.load.ramp_s + self._level.warm_up_s
                async with self._watched(on_progress, lag):
                    await self._run(start)
                measured_lag = lag.result()
        return measure(
            level=self._level,
            target=self._target,
            started_at=started_at,
            begin=self._begin,
            end=self._end,
            all_records=self._records,
            ended_by=self._ended_by,
            engine=engine.change(),
            lag=measured_lag,
        )

    # ------------------------------------------------------------- begin and end

    async def _run(self, start: float) -> None:
        """Sends all, then waits for what is in flight as long as the level says."""
        loop = asyncio.get_running_loop()
        everything = asyncio.create_task(self._send_all(start))
        waits = [asyncio.create_task(event.wait()) for event in (self._stop, self._closed)]
        stopped, closed = waits
        timer = None
        if (seconds := self._level.limits.max_seconds) is not None:
            timer = loop.call_later(self._begin + seconds - _clock(), self._close, "max_seconds")
        try:
            await asyncio.wait({everything, *waits}, return_when=asyncio.FIRST_COMPLETED)
            if closed.done() and not stopped.done():
                await asyncio.wait(
                    {everything, stopped},
                    timeout=self._drain_s(),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            if not everything.done():
                self._give_up(stopped.done())
            await everything
            self._close("arrivals")
        finally:
            for task in (everything, *waits):
                task.cancel()
            if timer is not None:
                timer.cancel()
            self._sender.close()

    def _give_up(self, is_stopped: bool) -> None:
        if is_stopped:
            self._close("stopped")
            self._sender.give_up(CANCELLED, "the measurement was stopped")
        else:
            text = f"no whole answer {self._level.drain_s:g} s after the last request was sent"
            self._sender.give_up("unfinished", text)

    def _close(self, why: str) -> None:
        """Nothing is sent from now on, and the measured time is over."""
        if self._ended_by:
            return
        self._ended_by, self._end = why, _clock()
        self._closed.set()
        for sleeper in self._sleepers:
            if not sleeper.done():
                sleeper.set_result(None)

    def _drain_s(self) -> float:
        """Where a number of requests was asked for, these are waited for."""
        is_counted = self._ended_by in ("max_requests", "max_tokens", "prompts")
        return self._level.timeout_s if is_counted else self._level.drain_s

    # ------------------------------------------------------------------ the load

    async def _send_all(self, start: float) -> None:
        load = self._level.load
        async with asyncio.TaskGroup() as group:
            if isinstance(load, OpenLoop):
                for offset in load.offsets:
                    if not await self._sleep_until(start + offset):
                        return
                    group.create_task(self._converse(start + offset))
                await asyncio.sleep(0)  # the last ones begin
                self._close("arrivals")
                return
            for number in range(load.size):
                begin = start + load.ramp_s * number / load.size
                group.create_task(self._person(load, begin))

    async def _person(self, load: FixedConcurrency | ClosedLoop, begin: float) -> None:
        """One conversation after the other; with a pause where the server fails at once."""
        pause_s = 0.0
        is_going = await self._sleep_until(begin)
        while is_going:
            is_well = await self._converse(_clock(), load)
            pause_s = 0.0 if is_well else min(MAX_PAUSE_S, 2 * pause_s + 0.1)
            is_going = await self._sleep_until(_clock() + pause_s)

    async def _converse(self, due: float, load: Load | None = None) -> bool:
        """All turns of the next conversation, the first due at `due`; whether all was well."""
        session = self._prompts.session(self._num_sessions)
        self._num_sessions += 1
        if session is None:
            self._close("prompts")
            return False
        answer: str | None = None
        while (prompt := session.next(answer)) is not None:
            if not self._may_ask(prompt, due):
                return False
            record, answer = await self._ask(prompt, due)
            if not record.is_ok:
                return False
            think_s = self._think_s(load)
            if think_s and not await self._sleep_until(_clock() + think_s):
                return False
            due = _clock()
        return True

    def _may_ask(self, prompt: Prompt, due: float) -> bool:
        limits, counts = self._level.limits, self._counts
        is_measured = due >= self._begin
        if is_measured and counts.measured == limits.max_requests:
            self._close("max_requests")
        if limits.max_tokens and counts.tokens_asked + prompt.max_tokens > limits.max_tokens:
            self._close("max_tokens")
        if self._ended_by:
            return False
        counts.asked += 1
        counts.measured += is_measured
        counts.tokens_asked += prompt.max_tokens
        return True

    async def _ask(self, prompt: Prompt, due: float) -> tuple[RequestRecord, str]:
        counts = self._counts
        record, text = await self._sender.ask(counts.asked, prompt, due)
        self._records.append(record)
        counts.failed += not record.is_ok and record.error != CANCELLED
        counts.tokens_done += record.output_tokens
        if counts.failed == self._level.limits.max_errors:
            self._close("max_errors")
        return record, text

    def _think_s(self, load: Load | None) -> float:
        if not isinstance(load, ClosedLoop) or not load.think_s:
            return 0.0
        return self._rng.expovariate(1 / load.think_s)

    async def _sleep_until(self, when: float) -> bool:
        """False: nothing is to be sent any more. Never early: what is sent before the warm-up's
        end would not be counted."""
        loop = asyncio.get_running_loop()
        while (wait_s := when - _clock()) > 0 and not self._ended_by:
            sleeper = loop.create_future()
            timer = loop.call_later(wait_s, _wake, sleeper)
            self._sleepers.add(sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleepers.discard(sleeper)
        return not self._ended_by

    # ------------------------------------------------------------------ progress

    @asynccontextmanager
    async def _watched(self, on_progress: OnProgress | None, lag: LagMeter) -> AsyncIterator[None]:
        """Tells of progress meanwhile; lag counts from the end of the warm-up."""
        loop = asyncio.get_running_loop()
        reset = loop.call_later(max(0.0, self._begin - _clock()), lag.reset)
        telling = None
        if on_progress is not None:
            telling = asyncio.create_task(self._tell(on_progress))
        try:
            yield
        finally:
            reset.cancel()
            if telling is not None:
                telling.cancel()

    async def _tell(self, on_progress: OnProgress) -> None:
        start = since = _clock()
        num_pieces = 0
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            now, pieces = _clock(), self._sender.num_pieces
            counts = self._counts
            ttfts = [each.ttft_ms for each in self._records[-100:] if each.ttft_ms is not None]
            on_progress(
                Progress(
                    name=self._level.name,
                    elapsed_s=now - start,
                    is_warm_up=now < self._begin,
                    num_in_flight=self._sender.num_in_flight,
                    num_done=len(self._records),
                    num_failed=counts.failed,
                    output_tokens=counts.tokens_done,
                    chunks_per_s=(pieces - num_pieces) / (now - since),
                    ttft_ms=median(ttfts) if ttfts else None,
                )
            )
            since, num_pieces = now, pieces


@dataclass(slots=True)
class _Counts:
    """`measured`: due after the warm-up. `tokens_asked`: what all may generate at most."""

    asked: int = 0
    measured: int = 0
    failed: int = 0
    tokens_asked: int = 0
    tokens_done: int = 0


def _wake(sleeper: "asyncio.Future[None]") -> None:
    if not sleeper.done():
        sleeper.set_result(None)
