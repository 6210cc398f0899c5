"""The log of a gateway with everything switched on."""

import hashlib
import json
import sqlite3
import time
from contextlib import closing

import pytest
from gateway_process import CHAT, MODEL, GatewayProcess, gateway_process, until
from mock_engine import chat_events, json_reply, sse_reply

from carpool.store.key_text import parse_key_text

PROMPT = "the prompt of nobody else's business"
ANSWER = "the answer, neither"


@pytest.fixture
def talkative(shared_engine, engine, tmp_path):
    with gateway_process(engine.url, tmp_path, "--log-format", "json", "--access-log") as gateway:
        yield gateway


def lines(gateway: GatewayProcess):
    return [json.loads(line) for line in gateway.log.read_text().splitlines()]


def lines_of(gateway, person):
    return [line for line in lines(gateway) if line.get("key_id") == person.key_id]


def test_a_request_is_a_line_with_what_became_of_it(talkative, engine):
    ada = talkative.add_person()
    response = ada.ask(max_tokens=3)
    [line] = until(lambda: lines_of(talkative, ada))
    assert line.pop("time").endswith("Z")
    assert line.pop("request_id") == response.headers["x-request-id"]
    assert 0 <= line.pop("queue_ms") <= line.pop("ttft_ms") <= line.pop("total_ms") < 10_000
    assert line.pop("prompt_tokens") > 0
    assert line == {
        "level": "info",
        "logger": "carpool.access",
        "message": "request",
        "key_id": ada.key_id,
        "person": talkative.store.get_person(ada.person_id).name,
        "model": MODEL,
        "backend": MODEL,
        "api": "chat",
        "outcome": "completed",
        "status": 200,
        "is_stream": False,
        "is_fallback": False,
        "cached_tokens": 0,
        "output_tokens": 3,
    }


def test_who_is_not_let_in_has_a_line_too(talkative):
    response = talkative.http.post(CHAT, json={"model": MODEL})
    request_id = response.headers["x-request-id"]
    [line] = until(
        lambda: [each for each in lines(talkative) if each.get("request_id") == request_id]
    )
    assert (line["outcome"], line["status"]) == ("bad_key", 401)


def test_requests_leave_no_line_unless_that_is_asked_for(gateway):
    before = gateway.log.read_text()
    gateway.visitor.ask()
    gateway.http.post(CHAT, json={})
    assert gateway.log.read_text() == before


def test_no_secret_and_no_text_is_anywhere(talkative, engine, tmp_path):
    """Good keys, bad ones, one that expired, one that was revoked, one before it was rotated;
    in every place where a client may put one; and an engine that repeats what it was told."""
    ada, late, gone, old = (
        talkative.add_person(),
        talkative.add_person(expires_at=time.time() + 1),
        talkative.add_person(),
        talkative.add_person(),
    )
    gone.revoke()
    talkative.store.rotate(old.key_id)
    until(lambda: old.ask().status_code == gone.ask().status_code == 401)
    until(lambda: late.ask().status_code == 401)
    keys = [each.key for each in (ada, late, gone, old)]
    engine.script = sse_reply(chat_events([ANSWER]))
    answers = [ada.ask(stream=True, messages=[{"role": "user", "content": PROMPT}])]
    for key in (*keys, ada.key[:-1], f"{ada.key}x"):
        for headers in (
            {"authorization": f"Bearer {key}"},
            {"x-api-key": key},
            {"authorization": f"Basic {key}"},
            {"authorization": f"Bearer {ada.key}", "cookie": key, "x-request-id": key},
        ):
            answers.append(
                talkative.http.post(
                    f"{CHAT}?key={key}", headers=headers, json={"model": "none", "user": key}
                )
            )
    engine.script = json_reply({"error": {"message": "no"}}, 500)
    answers.append(ada.ask())
    seen = [f"{answer.headers} {answer.text}" for answer in answers]
    seen.append(talkative.metrics())
    ada.ask()
    until(lambda: len(talkative.rows(ada)) >= 3)
    talkative.stop()
    seen.append(talkative.log.read_text())
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for key in keys:
        secret = parse_key_text(key).secret
        text = key.rpartition(f"{parse_key_text(key).key_id}-")[2][:-1]
        digest = hashlib.sha256(secret).hexdigest()
        for content in seen:
            assert text not in content
            assert secret.hex() not in content
            assert digest not in content
        for content in files:
            assert text.encode() not in content
            assert secret not in content
    assert ANSWER in seen[0]
    for word in (PROMPT, ANSWER):
        assert not any(word in content for content in seen[1:])
        assert not any(word.encode() in content for content in files)
    with closing(sqlite3.connect(talkative.database)) as connection:
        dump = "\n".join(connection.iterdump())
    hashes = [hashlib.sha256(parse_key_text(key).secret).hexdigest() for key in keys[:3]]
    for each in hashes:  # where it belongs, and nowhere else
        assert dump.lower().count(each) == 1
