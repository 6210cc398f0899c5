"""A thousand requests, a third of them abandoned, leave the gateway as it was before them."""

import contextlib
import os
import threading
from pathlib import Path

import httpx
import pytest
from gateway_process import ScriptedEngine, gateway_process, until
from mock_engine import chat_events, sse_reply

NUM_REQUESTS = 1000
NUM_THREADS = 16
MAX_GROWTH = 20 * 1024 * 1024


@pytest.fixture
def loaded(tmp_path):
    with (
        ScriptedEngine(max_num_seqs=8).serving() as engine,
        gateway_process(engine.url, tmp_path) as gateway,
    ):
        yield gateway, engine


def num_descriptors(gateway):
    return len(os.listdir(f"/proc/{gateway.pid}/fd"))


def resident_bytes(gateway):
    pages = Path(f"/proc/{gateway.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def run_numbers(ask):
    """`ask(number)` for all of them, in several threads."""
    numbers, lock = iter(range(NUM_REQUESTS)), threading.Lock()

    def work():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            ask(number)

    threads = [threading.Thread(target=work) for _ in range(NUM_THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_thousand_requests_of_which_many_are_abandoned_leave_nothing_behind(loaded):
    gateway, engine = loaded
    people = gateway.add_people(4, max_in_flight=3, rpm=100_000)
    whole = sse_reply(chat_events(["word "] * 4))
    endless = sse_reply(chat_events(["word "] * 4), stall_after=2)
    engine.script = lambda request: endless if request.json.get("user") == "leaver" else whole

    def ask(number):
        person = people[number % len(people)]
        match number % 10:
            case 0 | 1:
                with person.stream(user="leaver") as response:
                    next(response.iter_bytes())
            case 2:
                with contextlib.suppress(httpx.ReadTimeout):
                    person.ask(user="leaver", timeout=0.05)
            case 3:
                assert person.ask(content=b"{").status_code == 400
            case _:
                assert person.ask(stream=True).status_code == 200

    for number in range(50):
        ask(number)
    until(lambda: gateway.is_idle)
    descriptors, memory = num_descriptors(gateway), resident_bytes(gateway)

    run_numbers(ask)

    until(lambda: gateway.is_idle)
    gateway.http.close()
    gateway.http = httpx.Client(base_url=gateway.url)
    until(lambda: num_descriptors(gateway) <= descriptors + 2)
    assert resident_bytes(gateway) - memory < MAX_GROWTH
    assert engine.most_at_once <= 8
    answers = [person.ask(stream=True) for person in people for _ in range(3)]
    assert {answer.status_code for answer in answers} == {200}
    cancelled = gateway.metric("requests_total", outcome="client_cancelled")
    assert 0.2 * NUM_REQUESTS <= cancelled <= 0.4 * NUM_REQUESTS
    until(lambda: sum(len(gateway.rows(person)) for person in people) >= 0.9 * NUM_REQUESTS)
