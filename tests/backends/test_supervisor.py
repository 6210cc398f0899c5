"""Real processes: launched, killed, restarted, stopped, and never left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from carpool.backends.address import Address
from carpool.backends.backend import BackendState, Command
from carpool.backends.embedded import EmbeddedBackend
from carpool.backends.supervision import RestartPolicy
from carpool.backends.supervisor import Supervisor
from carpool.scheduling.capacity import Capacity, Provenance

POLICY = RestartPolicy(first_delay_s=0.05, max_delay_s=0.2, kill_after_s=0.1)
READY, DOWN = BackendState.READY, BackendState.DOWN


@pytest.fixture
def supervised(engine_command, tmp_path):
    """Makes a supervisor of the scripted engine; see `engine_command` for the options."""

    def make(*options, command=None):
        command = command or engine_command(*options)
        backend = EmbeddedBackend("main", Address(uds=tmp_path / "engine.sock"), command=command)
        return Supervisor(backend, policy=POLICY)

    return make


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def until(condition) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_a_launched_engine_becomes_ready_with_what_it_printed(within, supervised):
    async def run():
        supervisor = supervised()
        supervisor.start()
        status = await supervisor.wait_until(READY)
        await supervisor.stop(5)
        return status, supervisor

    status, supervisor = within(run())
    assert status.capacity == Capacity(8, 1024, 512, Provenance.REPORTED)
    assert supervisor.backend.model == "m"
    assert (supervisor.status.state, supervisor.status.reason) == (DOWN, "stopped")
    assert supervisor.pid is None


def test_a_killed_engine_is_down_then_ready_again_by_itself(within, supervised):
    async def run():
        supervisor = supervised()
        seen = []
        supervisor.on_status(lambda status: seen.append((status.state.value, status.reason)))
        supervisor.start()
        await supervisor.wait_until(READY)
        first = supervisor.pid
        os.kill(first, signal.SIGKILL)
        await supervisor.wait_until(DOWN)
        await supervisor.wait_until(READY)
        second = supervisor.pid
        await supervisor.stop(5)
        return seen, first, second

    seen, first, second = within(run())
    assert [state for state, _ in seen[:5]] == ["loading", "ready", "down", "loading", "ready"]
    assert "was killed by SIGKILL" in seen[2][1]
    assert first != second


def test_a_command_that_fails_says_why_and_is_tried_again(within, supervised):
    async def run():
        script = "import sys; sys.exit('no such model: x')"
        supervisor = supervised(command=Command((sys.executable, "-S", "-c", script)))
        reasons = []
        supervisor.on_status(lambda status: reasons.append(status.reason))
        supervisor.start()
        await until(lambda: supervisor.status.life == 3)
        await supervisor.stop(5)
        return reasons

    assert "exited with 1: no such model: x; starting it again" in within(run())[1]


def test_a_program_that_is_not_there_says_so(within, supervised):
    async def run():
        supervisor = supervised(command=Command(("/no/such/program",)))
        supervisor.start()
        status = await supervisor.wait_until(DOWN)
        await supervisor.stop()
        return status

    assert "cannot run /no/such/program" in within(run()).reason


def test_one_that_ignores_sigterm_is_killed_after_the_drain_time(within, supervised):
    async def run():
        supervisor = supervised("stubborn")
        supervisor.start()
        await supervisor.wait_until(READY)
        pid = supervisor.pid
        await supervisor.stop(0.1)
        return pid

    assert not is_running(within(run()))


def test_it_loads_drains_and_loads_as_the_engine_says(within, supervised, tmp_path):
    async def run():
        state = tmp_path / "state"
        state.write_text("loading")
        supervisor = supervised()
        supervisor.start()
        await asyncio.sleep(0.5)
        assert supervisor.status.state is BackendState.LOADING
        for word in ("ready", "draining", "loading", "ready"):
            state.write_text(word)
            await supervisor.wait_until(BackendState(word))
        await supervisor.stop(5)

    within(run())


def test_what_the_engine_started_goes_with_it(within, supervised):
    async def run():
        supervisor = supervised("child")
        supervisor.start()
        await supervisor.wait_until(READY)
        child = next(int(line.split()[1]) for line in supervisor.last_lines if "child" in line)
        assert is_running(child)
        os.kill(supervisor.pid, signal.SIGKILL)
        await supervisor.wait_until(DOWN)
        await until(lambda: not is_running(child))
        await supervisor.stop(5)

    within(run())


def test_a_cancelled_supervisor_leaves_nothing_behind(within, supervised):
    async def run():
        supervisor = supervised("stubborn")
        supervisor.start()
        await supervisor.wait_until(READY)
        pid = supervisor.pid
        others = [task for task in asyncio.all_tasks() if task.get_name() == "supervisor-main"]
        others[0].cancel()
        await asyncio.wait(others)
        return pid, supervisor.status

    pid, status = within(run())
    assert not is_running(pid)
    assert (status.state, status.reason) == (DOWN, "its supervisor ended")


def test_a_supervisor_that_fails_leaves_nothing_that_seems_ready(within, supervised):
    async def run():
        supervisor = supervised()
        supervisor.start()
        await supervisor.wait_until(READY)
        pid = supervisor.pid

        async def broken():
            raise ZeroDivisionError

        supervisor.backend.probe = broken
        status = await supervisor.wait_until(DOWN)
        with pytest.raises(ExceptionGroup):
            await supervisor.stop()
        return pid, status

    pid, status = within(run())
    assert not is_running(pid)
    assert status.reason == "its supervisor ended"


def test_it_works_on_uvloop(supervised):
    async def run():
        supervisor = supervised()
        supervisor.start()
        async with asyncio.timeout(20):
            await supervisor.wait_until(READY)
            os.kill(supervisor.pid, signal.SIGKILL)
            await supervisor.wait_until(DOWN)
            await supervisor.wait_until(READY)
            await supervisor.stop(5)
        return supervisor.status.reason

    uvloop = pytest.importorskip("uvloop")
    assert uvloop.run(run()) == "stopped"


def test_no_engine_outlives_a_supervisor_that_is_killed(engine_command, tmp_path):
    command = engine_command("child")
    holder = textwrap.dedent(f"""
        import sys, time
        from carpool.backends.backend import Command
        from carpool.backends.engine_process import EngineProcess
        process = EngineProcess(Command({command.argv!r}), print, print)
        print("engine", process.pid, flush=True)
        time.sleep(600)
    """)
    with subprocess.Popen(
        [sys.executable, "-u", "-c", holder], stdout=subprocess.PIPE, text=True
    ) as process:
        pids = {}
        while len(pids) < 2:
            words = process.stdout.readline().split()
            if words[0] in ("engine", "child"):
                pids[words[0]] = int(words[1])
        assert all(map(is_running, pids.values()))
        process.kill()
    deadline = time.monotonic() + 10
    while any(map(is_running, pids.values())) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(is_running, pids.values()))
