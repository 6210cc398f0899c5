"""A worker's process, and what a supervisor must know to keep it running."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

from carpool.backends.address import Address
from carpool.backends.backend import (
    BackendKind,
    BackendState,
    BackendUnreachable,
    Command,
    EngineLoad,
    Quirks,
)
from carpool.backends.engine_process import StartFailed, ending
from carpool.backends.http_get import http_get
from carpool.scheduling.capacity import Capacity, Provenance

PROBE_TIMEOUT_S = 5.0


class WorkerBackend:
    """A worker as a supervisor's Backend: started, probed and started again like an engine. It
    is ready once it has seen an engine of every model ready. `figures` is where it shows."""

    kind = BackendKind.REMOTE
    quirks = Quirks(health_path="/ready")
    model = "worker"
    api_key = None

    def __init__(self, number: int, figures: Address) -> None:
        self.name = f"worker {number}"
        self.address = figures

    def command(self) -> Command | None:
        return Command((sys.executable, "-m", "carpool.gateway.worker"))

    def began(self) -> None:
        """It has nothing to say that the next would have to forget."""

    def read_line(self, line: str) -> None:
        """It prints nothing but its log, on stderr."""

    async def probe(self) -> BackendState:
        answer = await http_get(self.address, self.quirks.health_path, timeout_s=PROBE_TIMEOUT_S)
        match answer.status:
            case 200:
                return BackendState.READY
            case 503:
                return BackendState.LOADING
        raise BackendUnreachable(f"{self.name} answered with {answer.status}")

    async def read_capacity(self) -> Capacity:
        """Of its own it carries nothing."""
        return Capacity(1, 1, 1, Provenance.PREDICTED)

    async def read_load(self) -> EngineLoad | None:
        return None

    async def find_model(self) -> None:
        """It has those of all engines."""


class WorkerProcess:
    """Runs from the start; `on_exit` gets how it ended, in a thread. Its first line is `config`;
    `tell` writes the next. Inherits the sockets whose numbers are `sockets`.

    Raises StartFailed.
    """

    def __init__(
        self,
        command: Command,
        config: bytes,
        sockets: Sequence[int],
        on_exit: Callable[[str], None],
    ) -> None:
        self._on_exit = on_exit
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command.argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env=os.environ | dict(command.env),
                pass_fds=sockets,
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"cannot run a worker: {error.strerror or error}") from None
        self.tell(config)
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        threading.Thread(target=self._wait, name="worker-exit", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """Ignored once it is gone."""
        self._process.send_signal(number)

    def tell(self, line: bytes) -> None:
        """One that does not listen is killed: it would go by what was."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        try:
            os.write(self._process.stdin.fileno(), line + b"\n")
        except BlockingIOError:
            self._process.kill()
        except BrokenPipeError:
            pass

    def _wait(self) -> None:
        code = self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        self._on_exit(ending(code))
