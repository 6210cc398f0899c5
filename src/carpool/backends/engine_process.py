"""An engine's process, with all that it starts, on a leash: it does not outlive this one."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from carpool.backends import leash
from carpool.backends.backend import Command
from carpool.errors import CarpoolError

_MAX_LINE_CHARS = 65536
_LAST_WORDS_S = 1.0


class StartFailed(CarpoolError):
    """The command could not be run."""


class EngineProcess:
    """Runs from the start; `on_line` gets each line of its output, stderr among it, and then
    `on_exit` how it ended ("exited with 1", "was killed by SIGKILL"). Both are called from
    threads of this object.

    Raises StartFailed.
    """

    def __init__(
        self,
        command: Command,
        on_line: Callable[[str], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self._on_line = on_line
        self._on_exit = on_exit
        self._leash = _start_leash()
        try:
            self._process = _start(command)
        except OSError as error:
            self._loosen(b"0 done\n")
            reason = error.strerror or str(error)
            raise StartFailed(f"cannot run {command.argv[0]}: {reason}") from None
        self._write_to_leash(b"%d " % self.pid)
        self._reader = threading.Thread(target=self._read, name="engine-output", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name="engine-exit", daemon=True)
        self._reader.start()
        self._waiter.start()

    @property
    def pid(self) -> int:
        """Also the number of its process group."""
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        """SIGKILL goes to its whole group, anything else to it alone; ignored once it is gone."""
        if number is signal.SIGKILL:
            self._kill_group()
        else:
            self._process.send_signal(number)

    def _read(self) -> None:
        output = self._process.stdout
        if output is None:
            return
        with output:
            while line := output.readline(_MAX_LINE_CHARS):
                self._on_line(line.rstrip())

    def _wait(self) -> None:
        code = self._process.wait()
        # What it started has nobody left to serve, and may hold the pipe and the memory.
        self._kill_group()
        self._reader.join(_LAST_WORDS_S)
        self._loosen(b"done\n")
        self._on_exit(ending(code))

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _loosen(self, word: bytes) -> None:
        self._write_to_leash(word)
        if self._leash.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._leash.stdin.close()
        self._leash.wait()

    def _write_to_leash(self, word: bytes) -> None:
        if self._leash.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._leash.stdin.write(word)
                self._leash.stdin.flush()


def _start(command: Command) -> "subprocess.Popen[str]":
    return subprocess.Popen(  # noqa: S603
        command.argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(command.env),
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _start_leash() -> "subprocess.Popen[bytes]":
    script = str(Path(leash.__file__))
    return subprocess.Popen(  # noqa: S603
        [sys.executable, "-I", "-S", script], stdin=subprocess.PIPE, start_new_session=True
    )


def ending(code: int) -> str:
    """How a process ended, as in "it exited with 1"."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
