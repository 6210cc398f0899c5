"""Tool calls are found in streams, however the text is cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.engine.tool_calls import (
    ContentDelta,
    ToolCallArgumentsDelta,
    ToolCallParser,
    ToolCallStart,
    ToolCallStyle,
    tool_call_style,
)

HERMES, LLAMA3 = ToolCallStyle.HERMES, ToolCallStyle.LLAMA3
Result = tuple[str, list[tuple[str, str]]]


def make_parser(style: ToolCallStyle) -> ToolCallParser:
    ids = itertools.count()
    return ToolCallParser(style, lambda: str(next(ids)))


def parse(style: ToolCallStyle, parts: list[str]) -> Result:
    """Content, and (name, arguments) of each call, put together from the events."""
    parser = make_parser(style)
    events = [event for part in parts for event in parser.feed(part)] + parser.finish()
    content, calls = "", []
    for event in events:
        match event:
            case ContentDelta(text):
                content += text
            case ToolCallStart(index, call_id, name):
                assert (index, call_id) == (len(calls), f"call_{index}")
                calls.append((name, ""))
            case ToolCallArgumentsDelta(index, text):
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + text)
    return content, calls


def hermes(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


CASES: list[tuple[ToolCallStyle, str, Result]] = [
    (HERMES, "plain \n\n text ", ("plain \n\n text ", [])),
    (HERMES, "a < b <tool <tool_ca", ("a < b <tool <tool_ca", [])),
    (HERMES, hermes('\n{"name": "f", "arguments": {"a": 1}}\n'), ("", [("f", '{"a": 1}')])),
    (
        HERMES,
        "Let me look.\n"
        + hermes('{"name": "f", "arguments": {"a": "</tool_call>\\"}", "b": [1, {"c": null}]}}')
        + "\n"
        + hermes('{"arguments": {"q": -1.5e3}, "name": "g\\u00e9"}')
        + "\n",
        (
            "Let me look.",
            [("f", '{"a": "</tool_call>\\"}", "b": [1, {"c": null}]}'), ("gé", '{"q": -1.5e3}')],
        ),
    ),
    (HERMES, hermes('{"name":"f"}') + " done", (" done", [("f", "{}")])),
    (HERMES, hermes('{"id": 7, "name":"f", "parameters": {}}'), ("", [("f", "{}")])),
    # Not calls: content, tag and all.
    (HERMES, hermes("not json") + " ", (hermes("not json") + " ", [])),
    (HERMES, "x " + hermes('{"name": "f", "arguments": "{}"}'), None),
    (HERMES, hermes('{"name": "", "arguments": {}}'), None),
    (HERMES, hermes('{"name": 3, "arguments": {}}'), None),
    (HERMES, hermes('["f"]'), None),
    (HERMES, hermes('{"arguments": {}}'), None),
    (HERMES, '<tool_call>{"name": "f", "argum', None),
    (HERMES, "<tool_call>\n" + hermes('{"name":"f"}'), ("<tool_call>", [("f", "{}")])),
    # Calls that go wrong after they have begun.
    (
        HERMES,
        hermes('{"name":"f","arguments":{"a": oops}}') + hermes('{"name":"g"}'),
        ("", [("f", '{"a": oops}}'), ("g", "{}")]),
    ),
    (HERMES, '<tool_call>{"name":"f","arguments":{"a": 1', ("", [("f", '{"a": 1')])),
    (HERMES, hermes('{"name":"f","arguments":{"a":1}\n') + "\nx", ("\n\nx", [("f", '{"a":1}')])),
    (HERMES, hermes('{"name":"f","arguments":{}}}\n'), ("}", [("f", "{}")])),
    (HERMES, hermes('{"name":"f","arguments":{},"z":no}'), (',"z":no}', [("f", "{}")])),
    (
        LLAMA3,
        '<|python_tag|>{"name": "f", "parameters": {"a": 1}}',
        ("", [("f", '{"a": 1}')]),
    ),
    (
        LLAMA3,
        ' {"name": "f", "parameters": {"a": ";"}}; {"name": "g", "parameters": {}}',
        ("", [("f", '{"a": ";"}'), ("g", "{}")]),
    ),
    (LLAMA3, '{"name": "Bob", "age": 3}', None),
    (LLAMA3, '{"name": "Bob"}', None),
    (LLAMA3, 'Sure {"name": "f", "parameters": {}}', None),
    (LLAMA3, '<|python_tag|>search.call(query="x")', None),
    (LLAMA3, '{"name": "f", "parameters": {}};; hi', (";; hi", [("f", "{}")])),
    (LLAMA3, '{"a": 1; {"name": "f", "parameters": {}}', None),
]


@pytest.mark.parametrize(("style", "text", "expected"), CASES)
def test_every_split_gives_what_the_whole_text_gives(style, text, expected):
    expected = expected or (text, [])
    assert parse(style, [text]) == expected
    for cut in range(len(text) + 1):
        assert parse(style, [text[:cut], text[cut:]]) == expected, text[:cut]
    for size in (1, 2, 3, 5, 17):
        parts = [text[start : start + size] for start in range(0, len(text), size)]
        assert parse(style, parts) == expected, size


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", '{"name":"f","arguments":'),
    *('{"name":"f","parameters":{}}', '{"x":[1,"}"]}', "{", "}", '"', ";", "\\", ",", ":"),
    *(" ", "\n", "1", "é"),
]


@given(st.sampled_from(ToolCallStyle), st.lists(st.sampled_from(FRAGMENTS), max_size=12), st.data())
def test_any_text_in_any_pieces_gives_the_same(style, fragments, data):
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = parse(style, [text])
    assert parse(style, parts) == whole
    assert parse(style, list(text)) == whole
    if not whole[1]:
        assert whole[0] == text


def test_arguments_stream_before_the_call_is_complete():
    parser = make_parser(HERMES)
    assert parser.feed('<tool_call>{"name": "f", ') == []
    assert parser.feed('"arguments": {"city": "Os') == [
        ToolCallStart(0, "call_0", "f"),
        ToolCallArgumentsDelta(0, '{"city": "Os'),
    ]
    assert parser.feed('lo"}') == [ToolCallArgumentsDelta(0, 'lo"}')]
    assert parser.feed("}</tool_call>") == []
    assert parser.finish() == []


def test_content_is_not_held_back_longer_than_a_tag_may_last():
    parser = make_parser(HERMES)
    assert parser.feed("Hello <tool") == [ContentDelta("Hello")]
    assert parser.feed("box> now") == [ContentDelta(" <toolbox> now")]


def test_long_texts_take_time_in_proportion():
    arguments = '{"a":"' + "x" * 200_000 + '"}'
    text = "word " * 40_000 + hermes(f'{{"name":"f","arguments":{arguments}}}')
    assert parse(HERMES, [text]) == (("word " * 40_000).rstrip(), [("f", arguments)])


@pytest.mark.parametrize(
    ("template", "style"),
    [
        (None, None),
        ("{{ messages }}", None),
        ("within <tool_call></tool_call> XML tags", HERMES),
        ("<tool_call>\n<function=example>", None),
        ("{{- '<|python_tag|>' + name }}", LLAMA3),
        ("Environment: ipython ... {{- '\"parameters\": ' }}", LLAMA3),
    ],
)
def test_the_chat_template_says_the_style(template, style):
    assert tool_call_style(template) is style
