"""Keeps one engine running: the loop that owns its state, and the effects it asks for."""

import asyncio
import contextlib
import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from carpool.backends.backend import Backend, BackendState, BackendUnreachable, Command
from carpool.backends.engine_process import EngineProcess, StartFailed
from carpool.backends.supervision import (
    BackendStatus,
    Begun,
    Effect,
    Event,
    Exited,
    NotReached,
    Probed,
    RestartPolicy,
    Send,
    Start,
    StopAsked,
    Supervision,
    TimePassed,
)

_LOG = logging.getLogger(__name__)
_LOADING_PROBE_S = 0.2
_NUM_LAST_LINES = 20
_KILLED_S = 10.0
_USAGE_ERROR = "exited with 2"

OnStatus = Callable[[BackendStatus], None]


class Process(Protocol):
    @property
    def pid(self) -> int: ...

    def send(self, number: signal.Signals) -> None: ...


Launch = Callable[[Command, Callable[[str], None], Callable[[str], None]], Process]
"""Like EngineProcess: the command, what gets its lines, what gets how it ended."""


class Supervisor:
    """Launches or attaches to `backend`, probes it, and starts it again when it ends.

    `status` is what holds now; `on_status` callbacks get every change of it, in the loop.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        policy: RestartPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        launch: Launch = EngineProcess,
        noun: str = "the engine",
    ) -> None:
        self.backend = backend
        self._command = backend.command()
        self._supervision = Supervision(
            policy or RestartPolicy(), is_launched=self._command is not None
        )
        self._clock = clock
        self._launch = launch
        self._noun = noun
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._process: Process | None = None
        self._last_lines: deque[str] = deque(maxlen=_NUM_LAST_LINES)
        self._callbacks: list[OnStatus] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def status(self) -> BackendStatus:
        return self._supervision.status

    @property
    def pid(self) -> int | None:
        """The process that runs now, if one was launched."""
        return None if self._process is None else self._process.pid

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The end of what the process printed, for people who ask why."""
        return tuple(self._last_lines)

    def retry_after_s(self) -> int:
        """See Supervision.retry_after_s."""
        return self._supervision.retry_after_s(self._clock())

    def not_reached(self, reason: str) -> None:
        """Somebody could not connect; the state follows at once."""
        self._handle(NotReached(self.status.life, reason))

    def on_status(self, callback: OnStatus) -> None:
        self._callbacks.append(callback)

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._mistake = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name=f"supervisor-{self.backend.name}")

    async def stop(self, drain_s: float = 30.0) -> None:
        """End the engine if it was launched, in at most about `drain_s` seconds; idempotent."""
        if self._task is None:
            return
        self._events.put_nowait(StopAsked(drain_s))
        await self._task

    async def wait_for_mistake(self) -> str:
        """Why the first process could never have run: there is no such program, or it does not
        take its arguments. Returns only then; starting it again, as is done all the same, may
        help once somebody has mended it."""
        return await asyncio.shield(self._mistake)

    async def wait_until(self, state: BackendState) -> BackendStatus:
        """The first status from now on whose state is `state`."""
        reached: asyncio.Future[BackendStatus] = asyncio.get_running_loop().create_future()

        def check(status: BackendStatus) -> None:
            if status.state is state and not reached.done():
                reached.set_result(status)

        check(self.status)
        self._callbacks.append(check)
        try:
            return await reached
        finally:
            self._callbacks.remove(check)

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                prober = group.create_task(self._probe_for_ever())
                self._handle(Begun())
                while not self._supervision.is_over:
                    self._handle(await self._next_event())
                prober.cancel()
        finally:
            await self._end_process()
            self._end()

    async def _next_event(self) -> Event:
        wake_at = self._supervision.wake_at
        left = None if wake_at is None else max(0.0, wake_at - self._clock())
        try:
            async with asyncio.timeout(left):
                return await self._events.get()
        except TimeoutError:
            return TimePassed()

    def _handle(self, event: Event) -> None:
        before = self.status
        if isinstance(event, Exited) and event.life == before.life:
            self._process = None
        for effect in self._supervision.handle(event, self._clock()):
            self._carry_out(effect)
        self._tell(before)

    def _tell(self, before: BackendStatus) -> None:
        status = self.status
        if status == before:
            return
        if (status.state, status.reason) != (before.state, before.reason):
            is_news = status.state is BackendState.DOWN and not self._supervision.is_over
            reason = f": {status.reason}" if status.reason else ""
            level = logging.WARNING if is_news else logging.INFO
            _LOG.log(level, "%s is %s%s", self.backend.name, status.state.value, reason)
        for callback in tuple(self._callbacks):
            callback(status)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Start(life):
                self._start_process(life)
            case Send(_, number):
                if self._process is not None:
                    self._process.send(number)

    def _start_process(self, life: int) -> None:
        if self._command is None:
            return
        self.backend.began()
        self._last_lines.clear()
        call = asyncio.get_running_loop().call_soon_threadsafe
        try:
            self._process = self._launch(
                self._command,
                _in_loop(call, partial(self._on_line, life)),
                _in_loop(call, partial(self._on_exit, life)),
            )
        except StartFailed as error:
            self._note_mistake(life, str(error))
            self._events.put_nowait(Exited(life, str(error)))

    def _on_line(self, life: int, line: str) -> None:
        if life != self.status.life or not line:
            return
        self._last_lines.append(line)
        self.backend.read_line(line)
        _LOG.debug("%s: %s", self.backend.name, line)

    def _on_exit(self, life: int, how: str) -> None:
        last = f": {self._last_lines[-1][:300]}" if self._last_lines else ""
        if how == _USAGE_ERROR:
            self._note_mistake(life, f"{self._noun} {how}{last}")
        self._events.put_nowait(Exited(life, f"{self._noun} {how}{last}"))

    def _note_mistake(self, life: int, reason: str) -> None:
        if life == 1 and not self._mistake.done():
            self._mistake.set_result(reason)

    async def _probe_for_ever(self) -> None:
        while True:
            self._events.put_nowait(await self._probe(self.status.life))
            await asyncio.sleep(self._probe_interval_s())

    def _probe_interval_s(self) -> float:
        """Short while an engine of our own is on its way; others are left in peace."""
        interval_s = self.backend.quirks.probe_interval_s
        if self._command is None or self.status.state is BackendState.READY:
            return interval_s
        return min(interval_s, _LOADING_PROBE_S)

    async def _probe(self, life: int) -> Probed:
        """A capacity is read once in a life, when it is ready for the first time."""
        try:
            state = await self.backend.probe()
            was_ready = self.status.state is BackendState.READY and self.status.life == life
            if state is not BackendState.READY or was_ready:
                return Probed(life, state)
            await self.backend.find_model()
            return Probed(life, state, await self.backend.read_capacity())
        except BackendUnreachable as error:
            return Probed(life, BackendState.DOWN, reason=str(error))

    def _end(self) -> None:
        """Nobody is told that an engine is ready which nobody watches."""
        if not self._supervision.is_over:
            before = self.status
            self._supervision.end("its supervisor ended")
            self._tell(before)

    async def _end_process(self) -> None:
        """Only for a loop that was cancelled: nothing that runs is left behind."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send(signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_S):
                while not isinstance(await self._events.get(), Exited):
                    pass


def _in_loop(call: Callable[..., object], function: Callable[[str], None]) -> Callable[[str], None]:
    """`function`, to be called from another thread; does nothing once the loop is closed."""

    def called(text: str) -> None:
        with contextlib.suppress(RuntimeError):
            call(function, text)

    return called
