import json

import pytest
from mock_engine import DONE, chat_body, chat_events, dumps, event

from carpool.gateway.model_alias import AliasWriter
from carpool.gateway.sse_events import data_of


def test_the_alias_stands_in_every_event_and_nothing_else_changes():
    events = chat_events(["a", "b"], model="Qwen/Qwen3")
    writer = AliasWriter("fast")

    rewritten = [writer.rewrite(each) for each in events]

    assert rewritten == chat_events(["a", "b"], model="fast")
    assert writer.real_name == "Qwen/Qwen3"
    assert rewritten[-1] is events[-1]
    assert events[-1] == DONE


@pytest.mark.parametrize("spaces", [(",", ":"), (", ", ": ")])
def test_a_name_in_the_text_is_left_alone(spaces):
    body = chat_body('"model":"real" is "model": "real"', model="real")
    raw = json.dumps(body, separators=spaces).encode()

    rewritten = AliasWriter("fast").rewrite(raw)

    assert json.loads(rewritten) == {**body, "model": "fast"}
    assert len(rewritten) == len(raw)


def test_only_the_answer_s_own_field_is_changed_among_several():
    body = {"metadata": {"model": "mine"}, "model": "real", "tools": [{"model": "real"}]}
    for raw in (dumps(body), event(body)):
        rewritten = AliasWriter("fast").rewrite(raw)
        text = data_of(rewritten) if raw.startswith(b"data:") else rewritten
        assert json.loads(text) == {**body, "model": "fast"}


@pytest.mark.parametrize("wrapper", ["message", "response"])
def test_names_within_a_wrapped_object_are_found(wrapper):
    inner = {"model": "real", "metadata": {"model": "mine"}}
    raw = event({"type": "x", wrapper: inner}, "x")

    rewritten = AliasWriter("fast").rewrite(raw)

    assert rewritten == event({"type": "x", wrapper: {**inner, "model": "fast"}}, "x")


def test_an_engine_that_changes_its_spelling_is_followed():
    writer = AliasWriter("fast")
    assert writer.rewrite(b'{"model":"a"}') == b'{"model":"fast"}'
    assert writer.rewrite(b'{"model": "a\\/b"}') == b'{"model": "fast"}'
    assert writer.real_name == "a"


@pytest.mark.parametrize(
    "raw",
    [b'{"role":"model"}', b'{"model":null}', b'data: "model":"\\q"\n\n', b'"model" "model" {'],
)
def test_what_names_no_model_is_left_alone(raw):
    assert AliasWriter("fast").rewrite(raw) == raw
