"""What counts as a token of an answer, and when it came: by the bytes of a scripted stream."""

import asyncio
import json
from typing import Any

import pytest

from carpool.bench.answer import Answer
from carpool.bench.exchange import Exchange

ROLE = {"role": "assistant", "content": ""}


def event(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


def usage(prompt: int, completion: int, **more: Any) -> bytes:
    return event(None, usage={"prompt_tokens": prompt, "completion_tokens": completion, **more})


DONE = b"data: [DONE]\n\n"
END = event({}, "stop") + DONE


def read(
    *pieces: bytes, status: int = 200, kind: bytes = b"text/event-stream", error: str | None = None
) -> Answer:
    """Pieces that come at 1, 2, 3 ... seconds."""
    with asyncio.Runner() as runner:
        exchange = Exchange(0.0, runner.get_loop().create_future())
    exchange.status = status
    exchange.headers[b"content-type"] = kind
    for second, piece in enumerate(pieces, 1):
        exchange.now = float(second)
        exchange.on_body(piece)
    exchange.ended, exchange.error = float(len(pieces)), error
    answer = Answer()
    for _ in answer.read(exchange):
        pass
    return answer


def test_the_role_an_empty_text_and_usage_are_no_tokens():
    answer = read(
        event(ROLE),
        event({"content": ""}),
        event({"content": None}),
        event({"content": "Hello"}),
        event({"content": " you"}),
        event({"content": ""}, "stop"),
        usage(7, 2),
        DONE,
    )
    assert answer.first_token == 4.0
    assert list(answer.token_times) == [4.0, 5.0]
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (7, 2, "stop")
    assert answer.error is None
    assert answer.text == "Hello you"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_a_first_token_but_no_answer(field):
    answer = read(event(ROLE), event({field: "Hm"}), event({"content": "Yes"}), END)
    assert answer.first_token == 2.0
    assert answer.first_answer_token == 3.0
    assert answer.text == "Yes"


def test_an_answer_of_reasoning_alone_is_whole():
    answer = read(event(ROLE), event({"reasoning_content": "Hm"}), event({}, "length"), DONE)
    assert answer.error is None
    assert answer.first_token == 2.0
    assert answer.first_answer_token is None


def test_a_tool_call_is_an_answer_and_its_empty_arguments_are_none():
    empty = {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}
    call = {"tool_calls": [{"index": 0, "function": {"name": "look_up", "arguments": ""}}]}
    answer = read(event(ROLE), event(empty), event(call), event({}, "tool_calls"), DONE)
    assert answer.first_token == answer.first_answer_token == 3.0


def test_chunks_of_several_tokens_are_counted_by_usage():
    answer = read(
        event({"content": "four tokens in one"}), event({"content": "four more"}), usage(3, 8), DONE
    )
    assert len(answer.token_times) == 2
    assert answer.completion_tokens == 8


def test_the_last_usage_counts_with_what_was_cached():
    details = {"prompt_tokens_details": {"cached_tokens": 16}}
    answer = read(
        event({"content": "a"}, usage={"completion_tokens": 1}), usage(20, 5, **details), END
    )
    assert (answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens) == (20, 16, 5)


def test_an_event_of_over_64_kb_counts_when_its_end_is_there():
    large = event({"content": "x" * 200_000})
    parts = [large[start : start + 65_536] for start in range(0, len(large), 65_536)]
    answer = read(event(ROLE), *parts, event({"content": "y"}), END)
    assert list(answer.token_times) == [1.0 + len(parts), 2.0 + len(parts)]
    assert answer.error is None


def test_several_events_of_one_piece_have_its_time():
    answer = read(event(ROLE) + event({"content": "a"}) + event({"content": "b"}), END)
    assert list(answer.token_times) == [1.0, 1.0]


def test_line_ends_comments_and_a_last_line_without_one():
    raw = b": ping\r\n\r\n" + event({"content": "a"}).replace(b"\n", b"\r\n") + b"data: [DONE]"
    assert read(raw).error is None


def test_texts_of_the_completions_api():
    chunk = b'data: {"choices": [{"index": 0, "text": "Hi", "finish_reason": null}]}\n\n'
    answer = read(chunk, DONE)
    assert (answer.first_token, answer.text) == (1.0, "Hi")


@pytest.mark.parametrize(
    ("pieces", "kind", "says"),
    [
        ((event({"content": "a"}),), "cut", "before its end"),
        ((event(ROLE), END), "empty", "no text"),
        ((b"data: {nonsense\n\n",), "malformed", "{nonsense"),
        ((b'data: {"error": {"message": "out of memory"}}\n\n',), "error_event", "out of memory"),
    ],
)
def test_answers_that_are_none(pieces, kind, says):
    answer = read(*pieces)
    assert answer.error == kind
    assert says in answer.error_text


def test_a_token_before_the_cut_is_kept():
    answer = read(event({"content": "a"}), error="cut")
    assert answer.error == "cut"
    assert answer.first_token == 1.0


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "bad_request"),
        (401, "unauthorized"),
        (404, "not_found"),
        (429, "rate_limited"),
        (503, "overloaded"),
        (500, "http_5xx"),
        (418, "http_4xx"),
        (302, "http_3xx"),
    ],
)
def test_statuses_are_kinds_of_errors(status, kind):
    answer = read(b'{"error": {"message": "no, because"}}', status=status, kind=b"application/json")
    assert (answer.error, answer.error_text) == (kind, "no, because")


def test_an_answer_in_one_piece_has_its_first_token_at_its_end():
    body = {
        "choices": [{"index": 0, "message": {"content": "All"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3},
    }
    whole = json.dumps(body).encode()
    answer = read(whole[:10], whole[10:], kind=b"application/json")
    assert (answer.first_token, answer.is_stream, answer.completion_tokens) == (2.0, False, 3)
