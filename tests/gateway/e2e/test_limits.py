"""What a key may use: all of it, no more, and nothing for what was refused."""

import json

import pytest
from gateway_process import body, until
from mock_engine import (
    chat_body,
    chat_events,
    json_reply,
    sse_reply,
    usage,
)

BIG_PROMPT = [{"role": "user", "content": "word " * 100}]


def remaining(response, what):
    return int(response.headers[f"x-ratelimit-remaining-{what}"])


def is_honest(response, limit):
    """Whether a refusal says which limit it was, and when to come back."""
    error = response.json()["error"]
    assert response.status_code in (429, 503)
    assert int(response.headers["retry-after"]) >= 1
    assert error["param"] == limit
    assert len(error["message"]) > 20
    return True


MALFORMED = {
    "no JSON": b'{"model": ',
    "not an object": b"[1, 2]",
    "not UTF-8": b'{"model": "\xff"}',
    "twice": b'{"model": "a", "model": "b"}',
    "deep": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "number as model": b'{"model": 7, "messages": []}',
    "no model": b'{"messages": []}',
    "unknown model": b'{"model": "nothing", "messages": []}',
    "long number": b'{"n": ' + b"9" * 5000 + b"}",
    "no number": b'{"model": "team-model", "temperature": NaN}',
    "empty": b"",
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_request_takes_no_seat_and_costs_nothing(gateway, engine, content):
    ada = gateway.add_person(max_in_flight=1, rpm=2)
    for _ in range(4):
        answer = ada.ask(content=content)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["message"]
    assert not engine.asked
    assert [ada.ask().status_code for _ in range(3)] == [200, 200, 429]


@pytest.mark.parametrize(
    "fields", [{"max_tokens": "many"}, {"stream": "yes"}, {"messages": 3}, {"stream_options": 1}]
)
def test_fields_of_a_wrong_type_are_the_engine_s_to_refuse_and_leave_nothing_behind(
    gateway, engine, fields
):
    ada = gateway.add_person(max_in_flight=1, max_output_tokens=50)
    engine.script = json_reply({"error": {"message": "no such type"}}, 400)
    for _ in range(3):
        assert ada.ask(**fields).status_code == 400
    engine.forget()
    assert ada.ask().status_code == 200
    until(lambda: gateway.is_idle)


def test_more_answers_than_anybody_could_write_are_refused(gateway, engine):
    content = json.dumps(body()).encode().replace(b"{", b'{"n": ' + b"9" * 4299 + b", ", 1)
    answer = gateway.add_person().ask(content=content)
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "kv_tokens"
    assert not engine.asked


def test_a_body_that_is_too_large_is_refused(gateway, engine):
    answer = gateway.visitor.ask(content=b"x" * (8 * 1024 * 1024 + 1))
    assert answer.status_code == 413
    assert not engine.asked


def test_requests_over_the_minute_are_refused_with_the_time_to_wait(gateway):
    ada = gateway.add_person(rpm=2)
    answers = [ada.ask() for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert is_honest(answers[2], "rpm")
    assert 20 <= int(answers[2].headers["retry-after"]) <= 30
    assert [remaining(answer, "requests") for answer in answers[:2]] == [1, 0]


def test_tokens_of_streams_count_against_the_minute(gateway, engine):
    ada = gateway.add_person(tpm=100)
    engine.script = sse_reply(chat_events(["word"] * 90, prompt=10))
    assert ada.ask(stream=True, max_tokens=5).status_code == 200
    until(lambda: gateway.is_idle)
    assert is_honest(ada.ask(stream=True, max_tokens=5), "tpm")
    assert len(engine.asked) == 1


def test_a_burst_of_big_prompts_does_not_pass_before_the_first_is_counted(gateway, engine):
    ada = gateway.add_person(tpm=1000)
    with engine.holding() as released:
        burst = [ada.start(messages=BIG_PROMPT, max_tokens=50) for _ in range(50)]
        until(lambda: sum(answer.done() for answer in burst) + gateway.num_in_flight == 50)
        num_let_in = gateway.num_in_flight
        released.set()
        answers = [answer.result() for answer in burst]
    assert 1 <= num_let_in <= 1000 // 50
    refused = [answer for answer in answers if answer.status_code == 429]
    assert len(refused) == 50 - num_let_in
    assert all(is_honest(answer, "tpm") for answer in refused)


COUNTED = {
    "prompt and output": (json_reply(chat_body("a", prompt=10, output=20)), 30),
    "cached prompt too": (
        json_reply(chat_body("a") | {"usage": usage(10, 20, cached=8)}),
        30,
    ),
    "an explicit nothing": (json_reply(chat_body("a", prompt=10, output=0)), 10),
    "an error of the engine": (json_reply({"error": {"message": "no"}}, 500), 0),
    "an error of the client": (json_reply({"error": {"message": "no"}}, 400), 0),
    "a stream": (sse_reply(chat_events(["a"] * 20, prompt=10)), 30),
}


@pytest.mark.parametrize(("reply", "num_tokens"), COUNTED.values(), ids=COUNTED)
def test_a_request_that_was_served_costs_one_request_and_what_the_engine_reports(
    gateway, engine, reply, num_tokens
):
    ada = gateway.add_person(rpm=6, daily_tokens=num_tokens + 40)
    engine.script = reply
    ada.ask(max_tokens=1, stream=reply.headers[0][1].startswith("text/event-stream"))
    until(lambda: gateway.is_idle)
    engine.forget()
    second = ada.ask(max_tokens=1)
    assert second.status_code == 200
    assert remaining(second, "requests") == 4
    row = gateway.row(ada)
    assert row["prompt_tokens"] + row["output_tokens"] == num_tokens


def test_an_engine_that_cannot_be_asked_costs_nothing(gateway, engine):
    ada = gateway.add_person(rpm=1)
    engine.script = sse_reply([], raw=b"HTTP/1.1 ")
    assert ada.ask().status_code == 502
    engine.forget()
    assert ada.ask().status_code == 200


def test_a_daily_budget_ends_and_says_when_it_begins_anew(gateway, engine):
    ada = gateway.add_person(daily_tokens=100)
    engine.script = json_reply(chat_body("a", prompt=40, output=60))
    assert ada.ask(max_tokens=20).status_code == 200
    assert is_honest(ada.ask(max_tokens=20), "daily_tokens")


def test_a_request_holds_its_place_until_its_stream_ends(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    reply = sse_reply(chat_events(["a", "b"]), stall_after=2)
    with engine.holding(reply) as released, ada.stream() as response:
        lines = response.iter_lines()
        assert any('"a"' in line for line in lines)
        second = ada.start()
        until(lambda: gateway.num_waiting == 1)
        assert len(engine.asked) == 1
        released.set()
        assert "data: [DONE]" in lines
        assert second.result().status_code == 200


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_cap_on_output_holds_by_whatever_name(gateway, engine, name):
    ada = gateway.add_person(max_output_tokens=100)
    ada.ask(**{name: 5000})
    ada.ask(**{name: 7})
    ada.ask()
    assert [request.json.get(name) for request in engine.asked[:2]] == [100, 7]
    assert engine.asked[2].json["max_tokens"] == 100


def test_a_prompt_over_the_key_s_limit_is_refused(gateway, engine):
    ada = gateway.add_person(max_prompt_tokens=30)
    assert ada.ask(messages=BIG_PROMPT).status_code == 413
    assert ada.ask().status_code == 200
    assert len(engine.asked) == 1


def test_retry_after_of_the_engine_is_passed_on(gateway, engine):
    for status in (429, 503):
        engine.script = json_reply({"error": {}}, status, headers=(("retry-after", "17"),))
        answer = gateway.visitor.ask()
        assert (answer.status_code, answer.headers["retry-after"]) == (status, "17")


def test_an_engine_s_refusal_without_a_time_gets_one(gateway, engine):
    for status in (429, 503):
        engine.script = json_reply({"error": {}}, status)
        answer = gateway.visitor.ask()
        assert answer.status_code == status
        assert int(answer.headers["retry-after"]) >= 1


def test_a_person_s_limits_hold_for_all_their_keys_together(gateway):
    ada = gateway.add_person()
    gateway.store.change_person(ada.person_id, limits={"rpm": 2})
    phone = type(ada)(gateway, gateway.store.add_key(ada.person_id, "phone"))
    until(lambda: phone.get("/v1/models").status_code == 200)
    assert [phone.ask().status_code, ada.ask().status_code] == [200, 200]
    for person in (ada, phone):
        answer = person.ask()
        assert is_honest(answer, "rpm")
        assert "with all your keys together" in answer.json()["error"]["message"]


def test_limits_are_changed_while_a_key_is_in_use_and_what_was_used_stays_used(gateway):
    ada = gateway.add_person(rpm=2)
    assert [ada.ask().status_code for _ in range(3)] == [200, 200, 429]
    gateway.store.change_key(ada.key_id, limits={"rpm": 3})
    until(lambda: ada.ask().status_code == 200, 1.0)
    assert is_honest(ada.ask(), "rpm")


def test_who_waits_at_a_cap_goes_when_it_is_raised(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    with engine.holding():
        first, second = ada.start(), ada.start()
        until(lambda: gateway.num_in_flight == 1 and gateway.num_waiting == 1)
        gateway.store.change_key(ada.key_id, limits={"max_in_flight": 2})
        until(lambda: gateway.num_in_flight == 2, 1.0)
    assert [answer.result().status_code for answer in (first, second)] == [200, 200]


def test_a_person_s_requests_at_once_are_capped_over_their_keys(gateway, engine):
    ada = gateway.add_person()
    gateway.store.change_person(ada.person_id, limits={"max_in_flight": 1})
    phone = type(ada)(gateway, gateway.store.add_key(ada.person_id, "phone"))
    until(lambda: phone.get("/v1/models").status_code == 200)
    with engine.holding():
        answers = [ada.start(), phone.start()]
        until(lambda: gateway.num_in_flight == 1 and gateway.num_waiting == 1)
    assert [answer.result().status_code for answer in answers] == [200, 200]
    assert engine.most_at_once == 1
