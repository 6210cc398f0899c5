"""The key says who asks; nothing else does, and the key itself is seen nowhere."""

import hashlib
import socket
import time

import pytest
from gateway_process import (
    CHAT,
    MODEL,
    chunks_of,
    connected,
    gateway_process,
    read_until_cut,
    request_bytes,
    until,
)
from mock_engine import chat_events, sse_reply

from carpool.store.key_text import parse_key_text

WITHIN_S = 1.0
SPOOFS = {
    "x-user": "ben",
    "x-carpool-person": "ben",
    "x-gateway-customer-id": "ben",
    "x-forwarded-user": "ben",
    "x-real-ip": "10.0.0.1",
    "forwarded": "for=10.0.0.1",
    "x-priority": "0",
    "priority": "u=0",
}


def is_refused(person):
    return person.ask().status_code == 401


def seconds_since(moment):
    return time.monotonic() - moment


def test_a_revoked_key_is_refused_within_a_second(gateway):
    ada = gateway.add_person()
    assert ada.ask().status_code == 200
    ada.revoke()
    until(lambda: is_refused(ada), WITHIN_S)


def test_a_revoked_key_is_refused_by_every_gateway_on_the_database(gateway, engine, tmp_path):
    with gateway_process(engine.url, tmp_path, database=gateway.database) as other:
        ada = gateway.add_person()
        elsewhere = type(ada)(other, ada.new)
        until(lambda: elsewhere.ask().status_code == 200)
        revoked_at = ada.revoke()
        until(lambda: is_refused(ada) and is_refused(elsewhere), WITHIN_S)
        assert seconds_since(revoked_at) < WITHIN_S
        other.stop()


def test_a_key_that_is_revoked_while_a_body_is_on_its_way_is_refused(gateway, engine):
    ada = gateway.add_person()
    request = request_bytes(ada)
    with connected(gateway) as connection:
        connection.sendall(request[:-1])
        ada.revoke()
        until(lambda: ada.get("/v1/models").status_code == 401, WITHIN_S)
        connection.sendall(request[-1:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 401 ")
    assert not engine.asked


def test_what_a_revoked_key_has_waiting_is_sent_away(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    with engine.holding():
        running, waiting = ada.start(), ada.start()
        until(lambda: gateway.num_waiting == 1 and gateway.num_in_flight == 1)
        ada.revoke()
        for answer in (running, waiting):
            response = answer.result(WITHIN_S)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "key_revoked"
        until(lambda: gateway.is_idle)
        assert len(engine.asked) == len(engine.left) == 1


def test_a_stream_of_a_revoked_key_ends_with_an_error(gateway, engine):
    ada = gateway.add_person()
    engine.script = sse_reply(chat_events(["word "] * 1000), piece_delay=0.02)
    with ada.stream() as response:
        pieces = response.iter_bytes()
        next(pieces)
        revoked_at = ada.revoke()
        content = read_until_cut(pieces)
        assert seconds_since(revoked_at) < WITHIN_S
    assert chunks_of(content.decode())[-1]["error"]["code"] == "stopped"
    until(lambda: engine.left)
    assert gateway.row(ada)["outcome"] == "key_revoked"
    assert gateway.row(ada)["output_tokens"] > 0


def test_who_does_not_read_holds_no_seat_with_a_revoked_key(gateway, engine):
    ada = gateway.add_person()
    engine.script = sse_reply([b"data: " + b"x" * 8000 + b"\n\n"] * 20_000)
    with connected(gateway) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(request_bytes(ada, stream=True))
        until(lambda: gateway.num_in_flight == 1)
        assert connection.recv(9) == b"HTTP/1.1 "
        ada.revoke()
        until(lambda: gateway.num_in_flight == 0, WITHIN_S)
    assert gateway.row(ada)["outcome"] == "key_revoked"


def test_the_secret_before_a_rotation_is_refused_and_the_new_one_works(gateway):
    ada = gateway.add_person()
    new = type(ada)(gateway, gateway.store.rotate(ada.key_id))
    until(lambda: is_refused(ada), WITHIN_S)
    assert new.ask().status_code == 200


def test_a_key_that_has_expired_is_refused(gateway):
    ada = gateway.add_person(expires_at=time.time() + 1.2)
    assert ada.ask().status_code == 200
    until(lambda: is_refused(ada), 3)
    assert "expired" in ada.ask().json()["error"]["message"]


def test_keys_that_do_not_do_are_all_refused_in_the_same_words(gateway):
    ada, ben = gateway.add_people(2)
    ben.revoke()
    until(lambda: is_refused(ben), WITHIN_S)
    secret = ada.key.split("-", 2)[2]
    bad = [
        ben.key,
        ada.key[:-1],
        f"cp-aaaaaaaaaaaa-{secret}",
        ada.key.replace(ada.key_id, ben.key_id),
        "sk-1234",
        "é",
    ]
    answers = [
        gateway.http.post(CHAT, headers={"authorization": f"Bearer {key}".encode()}) for key in bad
    ]
    answers.append(gateway.http.post(CHAT))
    assert {answer.status_code for answer in answers} == {401}
    assert len({answer.content for answer in answers}) == 1


def test_the_key_is_taken_from_either_header(gateway):
    ada = gateway.add_person()
    headers = {"x-api-key": ada.key}
    content = b'{"model":"%s","messages":[]}' % MODEL.encode()
    assert gateway.http.post(CHAT, headers=headers, content=content).status_code == 200


def test_who_asked_is_known_from_the_key_alone(gateway, engine):
    ada, ben = gateway.add_people(2)
    headers = SPOOFS | {"x-api-key": ben.key}
    assert ada.ask(headers=headers, user=ben.person_id, metadata={"user": "ben"}).status_code == 200
    row = gateway.row(ada)
    assert (row["person_id"], row["key_id"]) == (ada.person_id, ada.key_id)
    assert not gateway.rows(ben)
    assert not SPOOFS.keys() - {"x-user"} & engine.asked[0].headers.keys()


def test_ten_addresses_are_one_person_to_the_limits(gateway):
    ada = gateway.add_person(rpm=3)
    addresses = [f"10.0.0.{number}" for number in range(10)]
    statuses = [ada.ask(headers={"x-forwarded-for": each}).status_code for each in addresses]
    assert statuses == [200] * 3 + [429] * 7


def test_a_client_cannot_put_itself_first(gateway, engine):
    ada = gateway.add_person()
    assert ada.ask(priority=-100).status_code == 200
    assert "priority" not in engine.asked[0].json


def test_the_key_never_reaches_the_engine(gateway, engine):
    ada = gateway.add_person()
    everywhere = {"x-api-key": ada.key, "api-key": ada.key, "cookie": f"key={ada.key}"}
    for is_stream in (False, True):
        assert ada.ask(headers=everywhere, stream=is_stream).status_code == 200
    assert len(engine.asked) == 2
    assert ada.key not in repr(engine.asked)
    assert not {"authorization", "x-api-key", "cookie"} & engine.asked[0].headers.keys()


def test_a_model_that_a_key_may_not_use_is_not_told_from_one_that_is_not_there(gateway):
    ada = gateway.add_person(models=["other"])
    answers = [ada.ask(model=name) for name in (MODEL, "nothing")]
    assert [answer.status_code for answer in answers] == [403, 403]
    assert "other" not in answers[0].text
    assert answers[0].text.replace(MODEL, "nothing") == answers[1].text
    assert ada.get("/v1/models").json()["data"] == []


@pytest.mark.parametrize("status", [200, 401, 500])
def test_no_secret_is_in_an_answer_a_log_a_metric_or_the_database(gateway, engine, status):
    ada = gateway.add_person()
    secret = parse_key_text(ada.key).secret
    sent = [ada.key, ada.key[:-1], f"{ada.key}x"]
    engine.script = sse_reply(chat_events(["a"]), status=status)
    answers = [
        gateway.http.post(
            CHAT,
            headers={"authorization": f"Bearer {key}"},
            json={"model": f"{MODEL}", "messages": [], "stream": True},
        )
        for key in sent
    ]
    until(lambda: gateway.rows(ada))
    seen = [repr((answer.headers, answer.content)).encode() for answer in answers]
    seen += [gateway.metrics().encode(), gateway.log.read_bytes()]
    stored = [path.read_bytes() for path in gateway.database.parent.rglob("*") if path.is_file()]
    text = ada.key.removeprefix(f"cp-{ada.key_id}-")[:-1].encode()
    for content in seen + stored:
        assert text not in content
        assert secret not in content
        assert secret.hex().encode() not in content
    digest = hashlib.sha256(secret)
    for content in seen:
        assert digest.digest() not in content
        assert digest.hexdigest().encode() not in content
