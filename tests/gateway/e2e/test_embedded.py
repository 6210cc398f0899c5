"""The gateway over the engine of its own: a team's worst day, with the real model."""

import os
import signal
import time

import pytest
from gateway_process import ALIAS, chunks_of, gateway_process, read_until_cut, until

pytestmark = pytest.mark.model


LOADING_S = 120
ENGINE = ("--max-num-seqs", "4", "--kv-cache-memory", "256MiB", "--max-model-len", "1024")
LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture
def team(tmp_path, resolved_model):
    with gateway_process(
        "embedded", tmp_path, "--", *ENGINE, model=str(resolved_model.folder)
    ) as gateway:
        yield gateway


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(each) for each in file.read().split()]


def engine_pid(gateway):
    for pid in children(gateway.pid):
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if b"\0engine\0" in file.read():
                return pid
    return None


def test_two_people_share_an_engine_through_a_flood_a_revocation_and_a_crash(team):
    flooder, chatter, leaver = team.add_people(3)
    ask = {"model": ALIAS, "timeout": 60}

    flood = [flooder.start(**ask, max_tokens=24, ignore_eos=True) for _ in range(12)]
    until(lambda: team.num_waiting > 0)
    chat = chatter.ask(**ask, max_tokens=4)
    assert chat.status_code == 200
    assert chat.json()["choices"][0]["message"]["content"]
    assert sum(answer.done() for answer in flood) < len(flood)
    assert {answer.result().status_code for answer in flood} == {200}

    with leaver.stream(model=ALIAS, **LONG) as response:
        pieces = response.iter_bytes()
        next(pieces)
        revoked_at = leaver.revoke()
        cut = chunks_of(read_until_cut(pieces).decode())
        assert time.monotonic() - revoked_at < 1.5
    assert "revoked" in cut[-1]["error"]["message"]
    assert leaver.ask(**ask).status_code == 401

    before = engine_pid(team)
    with chatter.stream(model=ALIAS, **LONG) as response:
        pieces = response.iter_bytes()
        next(pieces)
        os.kill(before, signal.SIGKILL)
        cut = chunks_of(read_until_cut(pieces).decode())
    assert cut[-1]["error"]["code"] == "upstream_cut"
    until(lambda: team.http.get("/ready").status_code == 503)
    until(lambda: team.http.get("/ready").status_code == 200, LOADING_S)
    assert chatter.ask(**ask, max_tokens=4).status_code == 200
    after = engine_pid(team)
    assert after not in (None, before)

    until(lambda: len(team.rows(flooder)) == 12)
    until(lambda: len(team.rows(chatter)) == 3)
    rows = [*team.rows(flooder), *team.rows(chatter)]
    assert [row["output_tokens"] for row in team.rows(flooder)] == [24] * 12
    assert {row["outcome"] for row in rows} == {"completed", "upstream_cut"}
    assert team.row(leaver)["outcome"] == "key_revoked"

    assert team.stop(30) == 0
    assert not os.path.exists(f"/proc/{after}")
