"""What a collector gets to know of a request, and what it does not."""

import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from gateway_process import ALIAS, gateway_process, until
from mock_engine import chat_events, event, json_reply, sse_reply, usage
from trace_collector import collecting

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
PROMPT = "what nobody else is to read"
FAST_EXPORT = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@pytest.fixture(scope="module")
def collector():
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def traced(shared_engine, collector, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    for name, value in FAST_EXPORT.items():
        patch.setenv(name, value)
    home = tmp_path_factory.mktemp("traced")
    arguments = ("--otlp-endpoint", collector.url)
    with patch.context(), gateway_process(shared_engine.url, home, *arguments) as gateway:
        yield gateway
    patch.undo()


def trace_of(collector, response):
    return until(lambda: collector.of(response.headers["x-request-id"]))


def test_a_request_is_a_span_with_its_wait_and_its_engine_under_it(traced, collector, engine):
    ada = traced.add_person()
    before = time.time_ns()
    response = ada.ask(model=ALIAS, max_tokens=3, temperature=0.5)
    request, queue, upstream = trace_of(collector, response)
    assert request.name == f"chat {ALIAS}"
    assert (request.kind, request.parent_id, request.is_error) == ("server", "", False)
    assert request.resource["service.name"] == "carpool"
    found = request.attributes
    assert found.pop("gen_ai.usage.input_tokens") > 0
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "carpool",
        "gen_ai.request.model": ALIAS,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.response.model": engine.asked[0].json["model"],
        "gen_ai.usage.output_tokens": 3,
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "user.id": ada.person_id,
        "carpool.key_id": ada.key_id,
        "carpool.lane": "interactive",
        "carpool.request_id": response.headers["x-request-id"],
        "carpool.outcome": "completed",
        "carpool.queue.position": 0,
        "carpool.is_fallback": False,
        "carpool.usage.source": "reported",
    }
    assert (queue.name, queue.kind) == ("queue", "internal")
    assert (upstream.name, upstream.kind) == (f"chat {ALIAS}", "client")
    assert upstream.attributes["http.response.status_code"] == 200
    assert upstream.attributes["server.address"] in engine.url
    assert {span.trace_id for span in (queue, upstream)} == {request.trace_id}
    moments = [before, request.start_ns, queue.start_ns, queue.end_ns, upstream.start_ns]
    moments += [upstream.end_ns, request.end_ns, time.time_ns()]
    slack_ns = 20_000_000  # the event loop's clock stands still while it works
    assert all(late - early > -slack_ns for early, late in pairwise(moments))
    assert queue.end_ns >= queue.start_ns


def test_a_stream_has_its_time_to_first_chunk_and_what_was_cached(traced, collector, engine):
    events = chat_events(["a", "b"], has_usage=False)
    engine.script = sse_reply(
        [*events[:-1], event({"choices": [], "usage": usage(11, 2, cached=4)}), events[-1]]
    )
    with traced.visitor.stream() as response:
        response.read()
    found = trace_of(collector, response)[0].attributes
    assert found["gen_ai.request.stream"] is True
    assert 0 < found["gen_ai.response.time_to_first_chunk"] < 5
    assert found["gen_ai.usage.input_tokens"] == 11
    assert found["gen_ai.usage.cache_read.input_tokens"] == 4


def test_a_request_is_part_of_the_clients_trace_and_the_engine_of_ours(traced, collector, engine):
    headers = {"traceparent": TRACEPARENT, "tracestate": "theirs=1"}
    response = traced.visitor.ask(headers=headers)
    request, _, upstream = trace_of(collector, response)
    assert (request.trace_id, request.parent_id) == (TRACE_ID, PARENT_ID)
    [asked] = engine.asked
    assert asked.headers["traceparent"] == f"00-{TRACE_ID}-{upstream.span_id}-01"
    assert asked.headers["tracestate"] == "theirs=1"


@pytest.mark.parametrize(
    "traceparent", ["", "00-0-0-00", "x" * 500, f"{TRACEPARENT}, {TRACEPARENT}"]
)
def test_a_traceparent_that_is_none_begins_a_trace(traced, collector, engine, traceparent):
    response = traced.visitor.ask(headers={"traceparent": traceparent})
    request, _, upstream = trace_of(collector, response)
    assert request.parent_id == ""
    assert engine.asked[0].headers["traceparent"].split("-")[1:3] == [
        request.trace_id,
        upstream.span_id,
    ]


def test_a_client_that_does_not_sample_is_not_sampled(traced, collector, engine):
    silent = traced.visitor.ask(headers={"traceparent": f"{TRACEPARENT[:-2]}00"})
    trace_of(collector, traced.visitor.ask())
    assert not collector.of(silent.headers["x-request-id"])
    assert engine.asked[0].headers["traceparent"].startswith(f"00-{TRACE_ID}-")
    assert engine.asked[0].headers["traceparent"].endswith("-00")


def test_an_engine_that_fails_is_seen_where_it_did(traced, collector, engine):
    engine.script = sse_reply(chat_events(["a", "b", "c"]), cut_after=2)
    with traced.visitor.stream() as response:
        for _ in response.iter_lines():
            if "error" in _:
                break
    request, _, upstream = trace_of(collector, response)
    assert request.is_error
    assert upstream.is_error
    assert request.attributes["error.type"] == "upstream_cut"


def test_what_the_client_did_wrong_is_no_error_of_the_gateway(traced, collector, engine):
    engine.script = json_reply({"error": {"message": "no"}}, 400)
    request, _, upstream = trace_of(collector, traced.visitor.ask())
    assert not request.is_error
    assert request.attributes["error.type"] == "bad_request"
    assert upstream.attributes["error.type"] == "400"


def test_no_text_and_no_key_is_in_a_trace(traced, collector, engine):
    ada = traced.add_person()
    answer = ada.ask(
        messages=[{"role": "user", "content": PROMPT}],
        headers={"tracestate": f"a={ada.key[-40:]}", "x-api-key": ada.key},
    )
    trace_of(collector, answer)
    text = repr(collector.spans)
    assert PROMPT not in text
    assert answer.json()["choices"][0]["message"]["content"] not in text
    assert ada.key[-40:] not in text


def test_what_is_left_is_sent_at_the_end(engine, collector, tmp_path):
    with gateway_process(engine.url, tmp_path, "--otlp-endpoint", collector.url) as gateway:
        response = gateway.visitor.ask()
        assert gateway.stop() == 0
    assert collector.of(response.headers["x-request-id"])
    assert set(collector.paths) == {"/v1/traces"}


def test_a_collector_that_is_away_holds_nothing_up(engine, tmp_path):
    with gateway_process(engine.url, tmp_path, "--otlp-endpoint", "http://127.0.0.1:9") as gateway:
        assert gateway.visitor.ask().status_code == 200
        assert gateway.stop() == 0


@pytest.mark.parametrize(
    ("endpoint", "words"),
    [
        ("127.0.0.1:4318", "http://127.0.0.1:4318"),
        ("grpc://127.0.0.1", "http://127.0.0.1:4318"),
        ("http://", "http://127.0.0.1:4318"),
        ("http://ada:hush@127.0.0.1:4318", "OTEL_EXPORTER_OTLP_HEADERS"),
        ("ftp://ada:hush@127.0.0.1", "http://127.0.0.1:4318"),
    ],
)
def test_an_endpoint_of_no_use_is_refused(endpoint, words):
    done = _serve("--otlp-endpoint", endpoint)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith("carpool: --otlp-endpoint")
    assert words in line
    assert "hush" not in line


def test_without_the_packages_it_says_what_to_install(tmp_path):
    (tmp_path / "opentelemetry.py").write_text("raise ModuleNotFoundError(name='opentelemetry')")
    done = _serve("--otlp-endpoint", "http://127.0.0.1:4318", path=tmp_path)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "pip install 'carpool[otel]'" in line


def test_nothing_of_it_is_loaded_unless_it_is_asked_for():
    code = "import sys, carpool.gateway.gateway, carpool.cli; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def _serve(*arguments, path: Path | None = None):
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from carpool.cli import app; app()"
    return subprocess.run(
        [sys.executable, "-c", code, str(path or ""), "serve", "none", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
