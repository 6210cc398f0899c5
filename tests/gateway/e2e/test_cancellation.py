"""Whoever leaves gives back what they took, at once, and pays for what they got."""

import httpx
import pytest
from gateway_process import until
from mock_engine import chat_body, chat_events, json_reply, sse_reply

WORDS = ["word "] * 60
AT_ONCE_S = 1.0


def endless():
    """A stream that goes on for much longer than any test."""
    return sse_reply(chat_events(WORDS * 10), piece_delay=0.02)


def read_words(response, count):
    num_words = 0
    for line in response.iter_lines():
        num_words += '"word ' in line
        if num_words >= count:
            return


@pytest.mark.parametrize("num_words", [0, 1, 7])
def test_a_stream_whose_client_leaves_ends_at_the_engine_and_costs_what_was_sent(
    gateway, engine, num_words
):
    ada = gateway.add_person()
    engine.script = endless()
    with ada.stream() as response:
        assert response.status_code == 200
        read_words(response, num_words)
    until(lambda: engine.left, AT_ONCE_S)
    until(lambda: gateway.is_idle, AT_ONCE_S)
    row = gateway.row(ada)
    assert (row["outcome"], row["usage_source"]) == ("client_cancelled", "estimated")
    assert num_words <= row["output_tokens"] < len(WORDS)
    assert row["prompt_tokens"] > 0


def test_a_whole_answer_whose_client_leaves_ends_at_the_engine(gateway, engine):
    ada = gateway.add_person()
    with engine.holding():
        with pytest.raises(httpx.ReadTimeout):
            ada.ask(timeout=0.3)
        until(lambda: engine.left, AT_ONCE_S)
    until(lambda: gateway.is_idle, AT_ONCE_S)
    row = gateway.row(ada)
    assert (row["outcome"], row["status"], row["output_tokens"]) == ("client_cancelled", 499, 0)


def test_a_client_that_leaves_before_the_engine_answers_costs_the_prompt(gateway, engine):
    ada = gateway.add_person()
    engine.script = json_reply(chat_body("late"), head_delay=30)
    with pytest.raises(httpx.ReadTimeout):
        ada.ask(timeout=0.3)
    until(lambda: gateway.is_idle, AT_ONCE_S)
    row = gateway.row(ada)
    assert (row["outcome"], row["usage_source"]) == ("client_cancelled", "estimated")
    assert row["prompt_tokens"] > 0


def test_a_client_that_leaves_the_queue_gives_up_its_place(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    with engine.holding() as released:
        first = ada.start()
        until(lambda: len(engine.asked) == 1)
        with pytest.raises(httpx.ReadTimeout):
            ada.ask(timeout=0.2)
        until(lambda: gateway.num_waiting == 0, AT_ONCE_S)
        released.set()
        assert first.result().status_code == 200
    assert len(engine.asked) == 1


def test_streams_that_were_left_never_use_up_what_a_key_may_have_at_once(gateway, engine):
    ada = gateway.add_person(max_in_flight=1)
    engine.script = endless()
    for _ in range(20):
        with ada.stream() as response:
            assert response.status_code == 200
            read_words(response, 1)
    engine.forget()
    assert ada.ask().status_code == 200
    until(lambda: gateway.is_idle)
