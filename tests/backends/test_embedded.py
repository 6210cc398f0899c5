"""The embedded engine, launched for real, killed and back."""

import asyncio
import os
import signal

import pytest

from carpool.backends.backend import BackendState, BackendUnreachable
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.embedded import (
    EmbeddedBackend,
    launch_embedded,
    model_of_announcement,
    parse_announcement,
)
from carpool.backends.http_get import Answer
from carpool.backends.supervision import RestartPolicy
from carpool.backends.supervisor import Supervisor
from carpool.scheduling.capacity import Provenance

ANNOUNCEMENT = (
    '{"base_url": "http://localhost/v1", "uds": "/tmp/e.sock", "model": "smollm2-135m", '
    '"max_num_seqs": 64, "kv_tokens": 91008, "max_model_len": 8192, '
    '"max_num_batched_tokens": 256, "kv_bytes_per_token": 46080}'
)


def test_the_line_that_says_it_is_ready_is_read():
    assert parse_announcement(ANNOUNCEMENT) == CapacityFacts(64, 91008, 8192)
    assert model_of_announcement(ANNOUNCEMENT) == "smollm2-135m"


@pytest.mark.parametrize("line", ["", "{", "{}", "loading weights", '["a"]', '{"model": 3}'])
def test_other_lines_say_nothing(line):
    assert parse_announcement(line) == CapacityFacts()
    assert model_of_announcement(line) is None


def test_it_is_not_ready_before_it_said_what_it_carries(tmp_path):
    backend = launch_embedded("main", "smollm2-135m", tmp_path / "engine.sock")
    ready = Answer(200, {}, b'{"status": "ready"}')
    assert backend.state_of_answer(ready) is BackendState.LOADING
    backend.read_line(ANNOUNCEMENT)
    assert backend.state_of_answer(ready) is BackendState.READY
    backend.began()
    assert backend.state_of_answer(ready) is BackendState.LOADING


def test_an_engine_that_says_it_failed_is_of_no_use(tmp_path):
    backend = EmbeddedBackend("main", launch_embedded("a", "b", tmp_path / "s").address)
    with pytest.raises(BackendUnreachable):
        backend.state_of_answer(Answer(503, {}, b'{"status": "failed"}'))


@pytest.mark.model
def test_it_is_launched_killed_and_back_by_itself(resolved_model, tmp_path):
    options = ("--kv-cache-memory", "256MiB", "--max-num-seqs", "8", "--max-model-len", "2048")
    backend = launch_embedded("main", resolved_model.name, tmp_path / "e.sock", options=options)

    async def run():
        supervisor = Supervisor(backend, policy=RestartPolicy(first_delay_s=0.05))
        supervisor.start()
        async with asyncio.timeout(120):
            first = await supervisor.wait_until(BackendState.READY)
            os.kill(supervisor.pid, signal.SIGKILL)
            await supervisor.wait_until(BackendState.DOWN)
            assert supervisor.retry_after_s() >= 1
            second = await supervisor.wait_until(BackendState.READY)
            await backend.find_model()
            await supervisor.stop()
        return first, second

    first, second = asyncio.run(run())
    assert first.capacity == second.capacity
    assert first.capacity.max_num_seqs == 8
    assert first.capacity.max_model_len == 2048
    assert first.capacity.kv_tokens > 1000
    assert first.capacity.provenance is Provenance.REPORTED
    assert second.life == 2
    assert backend.model == "smollm2-135m"
