"""A constraint becomes a grammar for the engine, or a 400 that names its field."""

import pytest

from carpool.engine.grammar_error import GrammarError

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "move", "parameters": PERSON}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}


def accepts(vocabulary, grammar: str, text: str) -> bool:
    """Whether `text` as a whole is in the language of `grammar`."""
    matcher = vocabulary.matcher(grammar)
    row = vocabulary.allocate_bitmask(1)
    for token_id in [*text.encode(), 256]:
        matcher.fill_bitmask(row[0])
        if not row[0][token_id // 32] >> (token_id % 32) & 1:
            return False
        matcher.accept(token_id)
    return True


@pytest.mark.parametrize(
    ("fields", "fitting", "other"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": 1}', "[1]"),
        ({"response_format": FORMAT}, '{"name": "x"}', '{"age": 1}'),
        ({"guided_json": PERSON}, '{"name": "x"}', "{}"),
        ({"guided_json": '{"type": "integer"}'}, "42", '"42"'),
        ({"guided_regex": "[a-c]{2}"}, "ab", "ad"),
        ({"guided_choice": ["yes", "no"]}, "yes", "maybe"),
        ({"guided_grammar": 'start: "a" "b"'}, "ab", "ba"),
        ({"structured_outputs": {"json": PERSON}}, '{"name": "x"}', "{}"),
        ({"structured_outputs": {"regex": "x+"}}, "xx", "y"),
        ({"structured_outputs": {"choice": ["e2e4"]}}, "e2e4", "e2e5"),
        ({"structured_outputs": {"grammar": 'start: "z"'}}, "z", "y"),
    ],
)
def test_every_way_to_ask_makes_a_grammar(client, engine, vocabulary, fields, fitting, other):
    assert client.chat(**fields).status_code == 200
    grammar = engine.requests[0].sampling.grammar
    assert accepts(vocabulary, grammar, fitting)
    assert not accepts(vocabulary, grammar, other)


def test_completions_take_constraints_too(client, engine, vocabulary):
    client.complete(guided_choice=["a", "b"])
    assert accepts(vocabulary, engine.requests[0].sampling.grammar, "b")


def test_plain_text_has_no_grammar(client, engine):
    client.chat(response_format={"type": "text"})
    client.chat(tools=[TOOL])
    assert [request.sampling.grammar for request in engine.requests] == [None, None]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": {"properties": {"foo": "bar"}}}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"structured_outputs": {"json": 5}}, "structured_outputs.json"),
        ({"structured_outputs": 5}, "structured_outputs"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_regex": "["}, "guided_regex"),
        ({"guided_regex": "(?=x)"}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": "nonsense"}, "guided_grammar"),
        ({"structured_outputs": {"json": {"type": "unicorn"}}}, "structured_outputs.json"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        (
            {"response_format": {**FORMAT, "json_schema": {"schema": {"minimum": "x"}}}},
            "response_format",
        ),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice"),
        ({"response_format": FORMAT, "guided_regex": "a"}, "guided_regex"),
        ({"tools": [TOOL], "tool_choice": "required", "guided_regex": "a"}, "guided_regex"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"properties": {"a": 1}}},
                    }
                ],
                "tool_choice": "required",
            },
            "tools",
        ),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
    ],
)
def test_a_constraint_that_cannot_be_is_refused(client, engine, fields, param):
    response = client.chat(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert param in response.json()["error"]["message"]
    assert engine.requests == []


CALL = '<tool_call>\n{"name": "move", "arguments": {"name": "x"}}\n</tool_call>'


@pytest.mark.parametrize(
    ("choice", "one", "two", "text"),
    [
        ("required", True, True, False),
        ({"type": "function", "function": {"name": "move"}}, True, False, False),
    ],
)
def test_a_forced_call_is_constrained_to_the_tools(
    client, engine, vocabulary, choice, one, two, text
):
    client.chat(tools=[TOOL], tool_choice=choice)
    grammar = engine.requests[0].sampling.grammar
    assert accepts(vocabulary, grammar, CALL) is one
    assert accepts(vocabulary, grammar, f"{CALL}\n{CALL}") is two
    assert accepts(vocabulary, grammar, "hello") is text


def test_tools_and_a_format_together_allow_either(client, engine, vocabulary):
    client.chat(tools=[TOOL], response_format=FORMAT)
    grammar = engine.requests[0].sampling.grammar
    assert accepts(vocabulary, grammar, CALL)
    assert accepts(vocabulary, grammar, '{"name": "x"}')
    assert not accepts(vocabulary, grammar, "hello")


def test_tools_are_told_to_a_template_that_knows_none(client, engine):
    client.chat("play", tools=[TOOL])
    prompt = bytes(engine.requests[0].prompt_token_ids).decode()
    assert prompt.startswith("<system># Tools")
    assert '"name": "move"' in prompt


def test_tool_choice_none_leaves_the_tools_out(client, engine):
    client.chat("play", tools=[TOOL], tool_choice="none")
    assert b"move" not in bytes(engine.requests[0].prompt_token_ids)


def breaks_after(script, *texts):
    def broken(request):
        if texts:
            yield script(*texts, "")(request)[0]
        raise GrammarError("it takes too long (after 2 tokens of output)")

    return broken


@pytest.mark.parametrize("texts", [(), ("ab",)])
def test_a_grammar_that_breaks_is_the_callers_error(client, engine, script, texts):
    engine.script = breaks_after(script, *texts)
    response = client.chat(guided_grammar='start: "ab"')
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == "guided_grammar"
    assert error["message"] == "guided_grammar: it takes too long (after 2 tokens of output)"


def test_a_stream_whose_grammar_breaks_ends_with_the_same_error(client, engine, script, events):
    engine.script = breaks_after(script, "ab")
    data = events(client.chat(guided_grammar='start: "ab"', stream=True))
    assert data[-1]["error"]["param"] == "guided_grammar"
    assert data[-1]["error"]["type"] == "invalid_request_error"
    assert "[DONE]" not in data
    engine.script = breaks_after(script)
    assert client.chat(guided_grammar='start: "ab"', stream=True).status_code == 400
