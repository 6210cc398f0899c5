"""When to start, restart and end an engine: a state machine that knows no process and no clock.

Events go in, effects come out. Events of an earlier life of the engine change nothing.
"""

import math
import signal
from dataclasses import dataclass, replace

from carpool.backends.backend import BackendState
from carpool.scheduling.capacity import Capacity


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Restarts wait `first_delay_s`, then twice as long each time, up to `max_delay_s`; one
    that was ready for `stable_s` begins again at the first. They never end.

    An engine that was ready is down after `num_probes_down` failed probes in a row, and is
    restarted after `num_probes_restart`. `kill_after_s` is what SIGTERM leaves one that hangs.
    `expected_load_s` is what loading is taken to last until it was seen once.
    """

    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    stable_s: float = 60.0
    num_probes_down: int = 3
    num_probes_restart: int = 12
    kill_after_s: float = 10.0
    expected_load_s: float = 10.0

    def delay_s(self, num_short_lives: int) -> float:
        """The wait after the last of `num_short_lives` (at least 1) lives in a row."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(num_short_lives - 1, 32))


@dataclass(frozen=True, slots=True)
class BackendStatus:
    """`capacity` is there once the engine was ready, and stays; `reason` says why it is not
    ready ("" when it is). `life` counts the processes, 0 for one that is only attached to."""

    state: BackendState
    reason: str = ""
    capacity: Capacity | None = None
    life: int = 0


@dataclass(frozen=True, slots=True)
class Begun:
    """Supervision begins."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The answer to a probe; `capacity` with a state of ready, `reason` with one of down."""

    life: int
    state: BackendState
    capacity: Capacity | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NotReached:
    """A request found nobody who listens. That says more than a probe that was late: the engine
    is down until a probe finds it."""

    life: int
    reason: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone, or could not be started; `reason` says how."""

    life: int
    reason: str


@dataclass(frozen=True, slots=True)
class StopAsked:
    """End it: SIGTERM, and SIGKILL after `drain_s`."""

    drain_s: float


@dataclass(frozen=True, slots=True)
class TimePassed:
    """`wake_at` has come."""


Event = Begun | Probed | NotReached | Exited | StopAsked | TimePassed


@dataclass(frozen=True, slots=True)
class Start:
    life: int


@dataclass(frozen=True, slots=True)
class Send:
    """SIGTERM goes to the process, SIGKILL to everything that it started."""

    life: int
    signal: signal.Signals


Effect = Start | Send


class Supervision:
    """Owns the state of one engine; `handle` is the only thing that changes it.

    `wake_at` is when it wants a TimePassed, on the same clock as `now`, in seconds.
    """

    def __init__(self, policy: RestartPolicy, *, is_launched: bool) -> None:
        self.status = BackendStatus(BackendState.LOADING, "not started yet")
        self.wake_at: float | None = None
        self.is_over = False
        self._policy = policy
        self._is_launched = is_launched
        self._is_alive = False
        self._is_stopping = False
        self._started_at = 0.0
        self._ready_at: float | None = None
        self._num_short_lives = 0
        self._num_failed_probes = 0
        self._load_s = policy.expected_load_s

    def handle(self, event: Event, now: float) -> tuple[Effect, ...]:
        match event:
            case Begun():
                return self._start(now)
            case Probed():
                return self._on_probed(event, now)
            case NotReached():
                return self._on_not_reached(event)
            case Exited():
                return self._on_exited(event, now)
            case StopAsked():
                return self._on_stop(event.drain_s, now)
            case TimePassed():
                return self._on_time(now)

    def end(self, reason: str) -> None:
        """Nothing is supervised any more."""
        self.wake_at = None
        self.is_over = True
        self._set(BackendState.DOWN, reason)

    def retry_after_s(self, now: float) -> int:
        """When a request may be tried again: 0 if ready, else whole seconds, at least 1."""
        if self.status.state is BackendState.READY:
            return 0
        if self._is_alive and self._ready_at is None:
            left = self._started_at + self._load_s - now
        elif self.wake_at is not None and not self._is_alive:
            left = self.wake_at + self._load_s - now
        else:
            left = self._load_s
        return max(1, math.ceil(left))

    def _start(self, now: float) -> tuple[Effect, ...]:
        self._started_at, self._ready_at, self._num_failed_probes = now, None, 0
        self.wake_at = None
        if not self._is_launched:
            self._set(BackendState.LOADING, "not reached yet")
            return ()
        self._is_alive = True
        self.status = replace(self.status, life=self.status.life + 1)
        self._set(BackendState.LOADING, "loading")
        return (Start(self.status.life),)

    def _on_probed(self, event: Probed, now: float) -> tuple[Effect, ...]:
        is_stale = event.life != self.status.life or self._is_stopping
        if is_stale or (self._is_launched and not self._is_alive):
            return ()
        if event.state is BackendState.DOWN:
            return self._on_no_answer(event.reason, now)
        self._num_failed_probes = 0
        if event.state is BackendState.READY:
            if self._ready_at is None:
                self._ready_at, self._load_s = now, now - self._started_at
            self.status = replace(self.status, capacity=event.capacity or self.status.capacity)
            self._set(BackendState.READY)
        else:
            self._set(event.state, event.state.value)
        return ()

    def _on_not_reached(self, event: NotReached) -> tuple[Effect, ...]:
        if event.life == self.status.life and self.status.state is BackendState.READY:
            self._set(BackendState.DOWN, event.reason)
        return ()

    def _on_no_answer(self, reason: str, now: float) -> tuple[Effect, ...]:
        if self._is_launched and self._ready_at is None:
            return ()
        self._num_failed_probes += 1
        if self._ready_at is None or self._num_failed_probes >= self._policy.num_probes_down:
            self._set(BackendState.DOWN, reason)
        is_hung = self._num_failed_probes >= self._policy.num_probes_restart
        if not self._is_launched or not is_hung or self.wake_at is not None:
            return ()
        self.wake_at = now + self._policy.kill_after_s
        return (Send(self.status.life, signal.SIGTERM),)

    def _on_exited(self, event: Exited, now: float) -> tuple[Effect, ...]:
        if event.life != self.status.life or not self._is_alive:
            return ()
        self._is_alive = False
        if self._is_stopping:
            self.end("stopped")
            return ()
        was_stable = self._ready_at is not None and now - self._ready_at >= self._policy.stable_s
        self._num_short_lives = 1 if was_stable else self._num_short_lives + 1
        delay_s = self._policy.delay_s(self._num_short_lives)
        self.wake_at = now + delay_s
        self._set(BackendState.DOWN, f"{event.reason}; starting it again in {delay_s:g} s")
        return ()

    def _on_stop(self, drain_s: float, now: float) -> tuple[Effect, ...]:
        if not self._is_alive:
            self.end("stopped")
            return ()
        if self._is_stopping:
            self.wake_at = min(now + drain_s, self.wake_at or math.inf)
            return ()
        self._is_stopping = True
        self.wake_at = now + drain_s
        self._set(BackendState.DRAINING, "stopping")
        return (Send(self.status.life, signal.SIGTERM),)

    def _on_time(self, now: float) -> tuple[Effect, ...]:
        if self.wake_at is None or now < self.wake_at:
            return ()
        self.wake_at = None
        if self._is_alive:
            return (Send(self.status.life, signal.SIGKILL),)
        return self._start(now)

    def _set(self, state: BackendState, reason: str = "") -> None:
        self.status = replace(self.status, state=state, reason=reason)
