"""A gateway behind nginx or Caddy, with the configuration of docs/, is as good as without."""

import contextlib
import os
import socket
import subprocess

import httpx
import pytest
from gateway_process import (
    CHAT,
    MODEL,
    Person,
    ScriptedEngine,
    gateway_process,
    until,
)
from mock_engine import chat_events, sse_reply
from reverse_proxy import DOCS, caddy, make_certificate, nginx, substituted

from carpool.gateway.app import MAX_BODY_BYTES

AT_ONCE_S = 1.0
PROXIES = ["nginx", "nginx that buffers", "caddy"]


@pytest.fixture(scope="module")
def engine():
    with ScriptedEngine(kv_tokens=2 * MAX_BODY_BYTES).serving() as engine:
        yield engine


@pytest.fixture(scope="module")
def direct(engine, tmp_path_factory):
    """The gateway, met without a proxy."""
    with gateway_process(engine.url, tmp_path_factory.mktemp("gateway")) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return make_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module", params=PROXIES)
def proxied(request, direct, certificate, tmp_path_factory):
    name = request.param.split()[0]
    program = os.environ.get(f"CARPOOL_TEST_{name.upper()}")
    if not program:
        pytest.skip(f"CARPOOL_TEST_{name.upper()} names no program")
    folder = tmp_path_factory.mktemp(name)
    if name == "caddy":
        proxy = caddy(program, folder, direct, certificate)
    else:
        site = (DOCS / "nginx.conf").read_text()
        if request.param == "nginx that buffers":
            site = substituted(site, {"proxy_buffering off;": ""})
        proxy = nginx(program, folder, direct, certificate, site=site)
    with proxy as gateway:
        yield gateway


@pytest.fixture
def gateway(proxied, direct, engine):
    engine.forget()
    yield proxied
    until(lambda: direct.is_idle)


@pytest.fixture
def ada(direct, gateway):
    return Person(gateway, direct.visitor.new)


def test_the_caddyfile_is_valid_as_it_stands(certificate, tmp_path):
    program = os.environ.get("CARPOOL_TEST_CADDY")
    if not program:
        pytest.skip("CARPOOL_TEST_CADDY names no program")
    places = {
        "/etc/carpool/cert.pem": str(certificate.cert),
        "/etc/carpool/key.pem": str(certificate.key),
    }
    file = tmp_path / "Caddyfile"
    file.write_text(substituted((DOCS / "Caddyfile").read_text(), places))
    done = subprocess.run(
        [program, "validate", "--adapter", "caddyfile", "--config", file],
        env={"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_chunk_arrives_before_the_next_is_sent(ada, engine):
    """Wherever the engine stops, all that it has sent until then is there."""
    words = ["one", "two", "three", "four"]
    events = chat_events(words)
    for number, word in enumerate(words, start=1):
        with (
            engine.holding(sse_reply(events, stall_after=number + 1)) as released,
            ada.stream() as response,
        ):
            lines = response.iter_lines()
            assert any(f'"{word}"' in line for line in lines)
            released.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_what_waits_shows_signs_of_life(direct, gateway, engine):
    waiting = Person(gateway, direct.add_person(max_in_flight=1).new)
    with engine.holding() as released:
        first = waiting.start()
        until(lambda: len(engine.asked) == 1)
        with waiting.stream(headers={"x-carpool-heartbeat": "1"}) as response:
            lines = response.iter_lines()
            assert next(lines) == ": waiting"
            released.set()
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert first.result().status_code == 200


def test_a_stream_whose_client_leaves_ends_at_the_engine(ada, engine):
    engine.script = sse_reply(chat_events(["word "] * 1000), piece_delay=0.02)
    with ada.stream() as response:
        next(response.iter_bytes())
    until(lambda: engine.left, AT_ONCE_S)


def test_a_whole_answer_whose_client_leaves_ends_at_the_engine(ada, engine):
    with engine.holding():
        with pytest.raises(httpx.ReadTimeout):
            ada.ask(timeout=0.3)
        until(lambda: engine.left, AT_ONCE_S)


def test_a_stream_that_was_cut_says_so(ada, engine):
    """By its last event: not every proxy cuts what it passes on."""
    engine.script = sse_reply(chat_events(["word "] * 9), cut_after=5)
    lines = []
    with ada.stream() as response, contextlib.suppress(httpx.RemoteProtocolError):
        lines.extend(line for line in response.iter_lines() if line)
    assert "upstream_cut" in lines[-1]


def test_a_body_passes_as_long_as_the_gateway_takes_it(ada, engine):
    content = b'{"model":"%s","messages":[]' % MODEL.encode()
    whole = content + b" " * (MAX_BODY_BYTES - len(content) - 1) + b"}"
    assert ada.ask(content=whole).status_code == 200
    assert engine.asked[0].body == whole
    assert ada.ask(content=whole + b" ").status_code == 413
    assert len(engine.asked) == 1


def test_a_long_answer_arrives_whole(ada, engine):
    with ada.stream(max_tokens=20_000) as response:
        assert response.read().count(b'"word "') == 20_000


def test_headers_survive_both_ways(direct, gateway, engine):
    ada = Person(gateway, direct.add_person(rpm=100).new)
    response = ada.ask(headers={"x-team": "blue", "traceparent": "00-1-2-00"})
    assert engine.asked[0].headers["x-team"] == "blue"
    assert engine.asked[0].headers["traceparent"].startswith("00-")
    assert response.headers["x-request-id"].startswith("cp-")
    assert response.headers["x-carpool-queue-ms"].isdigit()
    assert response.headers["x-ratelimit-remaining-requests"] == "99"
    with ada.stream() as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in response.headers


def test_a_refusal_arrives_in_the_gateways_words(direct, gateway):
    ada = Person(gateway, direct.add_person(rpm=1).new)
    assert ada.ask().status_code == 200
    response = ada.ask()
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert response.json()["error"]["code"] == "requests_per_minute"
    assert gateway.http.post(CHAT, json={}).status_code == 401


def test_only_what_people_need_is_let_through(ada):
    assert ada.get("/v1/models").json()["data"]
    assert ada.get("/health").status_code == ada.get("/ready").status_code == 200
    hidden = ["/metrics", "/admin", "/admin/keys", "/"]
    tricks = ["//metrics", "/v1/../metrics", "/v1/%2e%2e/metrics", "/metrics/", "/%6detrics"]
    for path in (*hidden, *tricks):
        response = ada.get(path)
        assert response.status_code == 404, path
        assert "carpool_" not in response.text


def test_there_is_no_way_around_tls(ada, gateway):
    host, _, port = gateway.url.removeprefix("https://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert b" 400 " in connection.recv(65536).partition(b"\r\n")[0]
    with pytest.raises(httpx.ConnectError, match="certificate"):
        httpx.get(f"{gateway.url}/health")
