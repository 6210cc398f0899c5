"""Running a set: what is asked, what is kept, and what is said of endpoints that fail."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mock_engine import (
    SSE,
    Reply,
    SeenRequest,
    chat_body,
    chat_events,
    event,
    json_reply,
    serving,
    sse_reply,
)

from carpool.evals.endpoint import EndpointError, Fault
from carpool.evals.eval_run import RunFileError, read_run
from carpool.evals.eval_set import EvalSet, read_eval_set, smoke_set
from carpool.evals.runner import EndpointDied
from tests.evals.mock_version import Version
from tests.evals.runs import Runs

CHAT = "/v1/chat/completions"


@pytest.fixture
def two_cases(tmp_path: Path) -> EvalSet:
    path = tmp_path / "set.yaml"
    path.write_text(
        "cases:\n"
        "- {id: whole, prompt: Hi, sampling: {seed: 7}, checks: [{contains: Paris}]}\n"
        "- {id: streamed, prompt: Ho, stream: true, checks: [{contains: Rome}]}\n"
    )
    return read_eval_set(path)


def test_answers_whole_and_streamed_are_the_same_answers(runs: Runs) -> None:
    with serving(Version().reply) as engine:
        found = runs.run(smoke_set(), engine.url)
    assert [result.reason for result in found.results if not result.has_passed] == []
    by_case = found.by_case()
    for name in ("tool-forced", "json-schema", "stop-at-max-tokens", "template-user"):
        whole, streamed = by_case[name][0].answer, by_case[f"{name} (stream)"][0].answer
        assert whole is not None
        assert streamed is not None
        assert streamed.first_s is not None
        assert replace(whole, total_s=0.0) == replace(streamed, total_s=0.0, first_s=None)


def test_what_is_asked(runs: Runs, two_cases: EvalSet) -> None:
    with serving(Version(api_key="sk-1").reply) as engine:
        found = runs.run(two_cases, engine.url, repeats=2, temperature=0.5, api_key="sk-1")
    asked = [request.json for request in engine.requests if request.path == CHAT]
    assert len(asked) == 4
    assert {body["temperature"] for body in asked} == {0.5}
    assert {body["model"] for body in asked} == {"team-model"}
    assert sorted(body["seed"] for body in asked if not body["stream"]) == [7, 8]
    assert [body["stream_options"] for body in asked if body["stream"]] == [
        {"include_usage": True}
    ] * 2
    assert len(found.results) == 4
    assert found.template.version == "1.0"
    assert found.template.rendered["user"].token_ids


def test_a_run_is_on_disk_as_it_goes_on(runs: Runs, two_cases: EvalSet) -> None:
    with serving(Version().reply) as engine:
        found = runs.run(two_cases, engine.url, repeats=3)
    assert read_run(runs.writer.path) == found
    assert found.is_complete
    assert runs.writer.path.stat().st_mode & 0o077 == 0


def test_what_is_kept_is_read_though_it_was_cut(runs: Runs, two_cases: EvalSet) -> None:
    with serving(Version().reply) as engine:
        runs.run(two_cases, engine.url, repeats=3)
    path = runs.writer.path
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:50])
    found = read_run(path)
    assert not found.is_complete
    assert len(found.results) == 5
    path.write_bytes(lines[0] + b"{}\n" + lines[1])
    with pytest.raises(RunFileError, match="line 2 is no line of a stored run"):
        read_run(path)
    path.write_bytes(lines[2])
    with pytest.raises(RunFileError, match="it does not say what was run"):
        read_run(path)


def test_an_endpoint_that_is_down(runs: Runs, two_cases: EvalSet) -> None:
    with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:1 is down: no connection") as e:
        runs.run(two_cases, "http://127.0.0.1:1/v1")
    assert e.value.fault is Fault.DOWN


def test_an_endpoint_that_wants_a_key(runs: Runs, two_cases: EvalSet) -> None:
    with serving(Version(api_key="sk-secret").reply) as engine:
        with pytest.raises(EndpointError, match="--api-key-file") as error:
            runs.run(two_cases, engine.url)
        with pytest.raises(EndpointError) as wrong:
            runs.run(two_cases, engine.url, api_key="sk-wrong")
    assert error.value.fault is wrong.value.fault is Fault.WANTS_KEY
    assert "sk-" not in f"{error.value}{wrong.value}"


def test_an_endpoint_without_the_model(runs: Runs, two_cases: EvalSet) -> None:
    with serving(Version().reply) as engine, pytest.raises(EndpointError) as error:
        runs.run(two_cases, engine.url, "other")
    assert "has no model 'other'; it has: team-model" in str(error.value)
    two = {"data": [{"id": "a"}, {"id": "b"}]}
    with serving(json_reply(two)) as engine, pytest.raises(EndpointError) as error:
        runs.run(two_cases, engine.url)
    assert "with --model; it has: a, b" in str(error.value)


class Fragile:
    """Answers `num_answers` requests, and then nothing any more."""

    def __init__(self, num_answers: int) -> None:
        self.num_left = num_answers

    def reply(self, request: SeenRequest) -> Reply:
        if request.path == CHAT:
            self.num_left -= 1
        if self.num_left < 0:
            return Reply(raw=b"")
        return Version().reply(request)


def test_an_endpoint_that_dies_in_the_middle_costs_nothing_measured(
    runs: Runs, two_cases: EvalSet
) -> None:
    with serving(Fragile(5).reply) as engine, pytest.raises(EndpointDied) as error:
        runs.run(two_cases, engine.url, repeats=10, concurrency=1)
    assert "went away in the middle" in str(error.value)
    kept = read_run(runs.writer.path)
    assert not kept.is_complete
    assert kept.info.num_planned == 20
    assert [result.answer is not None for result in kept.results] == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (json_reply({"error": {"message": "too long"}}, 400), "with 400: too long"),
        (json_reply({"detail": "broken"}, 500), "with 500: broken"),
        (json_reply({"choices": []}), "no completion: it has no choices"),
        (Reply(pieces=(b"<html>",), framing="length"), "no JSON: <html>"),
        (sse_reply([event({"error": {"message": "out of memory"}})]), "in its stream: "),
        (sse_reply(chat_events(["a"])[:2]), "ended a stream before its answer was whole"),
        (Reply(headers=SSE, pieces=(b"data: {}\n\n",), cut_after=1), "gave no whole answer"),
        (Reply(head_delay=30.0), "took over 3 s for an answer"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_is_the_case_s_result(
    runs: Runs, two_cases: EvalSet, reply: Reply, told: str
) -> None:
    def script(request: SeenRequest) -> Reply:
        is_first = request.path == CHAT and request.json["messages"][0]["content"] == "Hi"
        return reply if is_first else Version().reply(request)

    with serving(script) as engine:
        found = runs.run(two_cases, engine.url, timeout_s=3.0)
    whole, streamed = (found.by_case()[key][0] for key in ("whole", "streamed (stream)"))
    assert whole.answer is None
    assert told in str(whole.error)
    assert streamed.answer is not None
    assert streamed.reason == 'contains: "It is Paris." lacks "Rome"'
    assert found.is_complete


def test_one_that_is_busy_is_asked_again(runs: Runs, two_cases: EvalSet) -> None:
    busy = json_reply({"error": {"message": "queue"}}, 429)
    refusals = [replace(busy, headers=[*busy.headers, ("retry-after", "0")])] * 3

    def script(request: SeenRequest) -> Reply:
        if request.path == CHAT and refusals:
            return refusals.pop()
        return Version().reply(request)

    with serving(script) as engine:
        found = runs.run(two_cases, engine.url)
    assert all(result.answer is not None for result in found.results)


def test_reasoning_and_tool_calls_in_pieces_are_put_together(
    runs: Runs, two_cases: EvalSet
) -> None:
    deltas = [
        {"reasoning": "Hm"},
        {"reasoning_content": "."},
        {"tool_calls": [{"index": 1, "function": {"name": "b", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "a", "arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"content": "It is Rome"},
    ]
    events = [event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})

    def script(request: SeenRequest) -> Reply:
        if request.path == CHAT and request.json["stream"]:
            return sse_reply([*events, last])
        return json_reply(chat_body("Paris")) if request.path == CHAT else Version().reply(request)

    with serving(script) as engine:
        found = runs.run(two_cases, engine.url)
    streamed = found.by_case()["streamed (stream)"][0].answer
    assert streamed is not None
    assert (streamed.reasoning, streamed.text) == ("Hm.", "It is Rome")
    assert [(call.name, call.arguments) for call in streamed.tool_calls] == [
        ("a", json.dumps({"x": 1})),
        ("b", ""),
    ]
    assert streamed.finish_reason == "tool_calls"
    assert streamed.prompt_tokens is None
