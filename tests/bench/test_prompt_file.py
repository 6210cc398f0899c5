"""Prompts from files, and complaints about files that are none."""

import json

import pytest

from carpool.bench.errors import BenchError
from carpool.bench.prompt_file import read_conversations
from carpool.bench.prompts import Shape
from carpool.bench.trace import read_trace


@pytest.fixture
def write(tmp_path):
    def write(name: str, text: str):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def asked(conversations) -> list[str]:
    return [turn[-1]["content"] for each in conversations for turn in each.turns]


def test_sharegpt_is_cut_into_turns(write):
    talk = [
        {"from": "human", "value": "One?"},
        {"from": "gpt", "value": "1"},
        {"from": "human", "value": "Two?"},
        {"from": "gpt", "value": "2"},
    ]
    (found,) = read_conversations(write("a.json", json.dumps([{"conversations": talk}])))
    assert [[each["role"] for each in turn] for turn in found.turns] == [
        ["user"],
        ["assistant", "user"],
    ]


def test_jsonl_of_messages_prompts_and_bounds(write):
    lines = [
        {"messages": [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "A"}]},
        {"prompt": "B", "max_tokens": 9, "tools": [{"type": "function"}]},
    ]
    found = read_conversations(write("a.jsonl", "\n".join(map(json.dumps, lines))))
    assert asked(found) == ["A", "B"]
    assert found[0].turns[0][0]["role"] == "system"
    assert (found[1].max_tokens, found[1].extra) == (9, {"tools": [{"type": "function"}]})


def test_csv_and_plain_lines(write):
    found = read_conversations(write("a.csv", 'prompt,output_tokens\n"Why, then?",12\nHow?,\n'))
    assert asked(found) == ["Why, then?", "How?"]
    assert [each.max_tokens for each in found] == [12, None]
    assert asked(read_conversations(write("a.txt", "One\n\nTwo\n"))) == ["One", "Two"]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": }', "row 2: no JSON"),
        ("a.jsonl", '\n{"prompt": "x", "max_tokens": 1.5}', "row 2: field max_tokens is 1.5"),
        ("a.jsonl", '{"messages": [{"content": "x"}]}', "row 1: an entry of messages"),
        ("a.json", '[{"conversations": [{"from": "me", "value": "x"}]}]', "row 1: field from"),
        ("a.json", '{"prompt": "x"}', "a JSON list"),
        ("a.csv", "words\nhello\n", "row 2: none of the fields"),
        ("a.txt", "\n \n", "no prompts"),
    ],
)
def test_a_bad_row_is_named(write, name, text, says):
    with pytest.raises(BenchError, match=says) as error:
        read_conversations(write(name, text))
    assert name in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(BenchError, match="cannot be read"):
        read_conversations(tmp_path / "none.jsonl")


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def test_traces_of_azure(write):
    text = f"{AZURE}2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:48.1805900,396,0\n"
    trace = read_trace(write("a.csv", text))
    assert trace.timestamps[1] - trace.timestamps[0] == pytest.approx(1.5)
    assert trace.shapes == (Shape(374, 44), Shape(396, 1))


def test_traces_of_azure_with_a_time_zone(write):
    trace = read_trace(write("a.csv", f"{AZURE}2024-05-10 00:00:00.009930+00:00,1,2\n"))
    assert trace.timestamps[0] == pytest.approx(1715299200.00993)


def test_traces_of_mooncake(write):
    lines = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
        {"timestamp": 3000, "input_length": 700, "output_length": 6, "hash_ids": [1, 3]},
    ]
    path = write("a.jsonl", "\n".join(map(json.dumps, lines)))
    trace = read_trace(path)
    assert trace.timestamps == (0, 3)
    assert trace.shapes == (Shape(600, 5, (1, 2)), Shape(700, 6, (1, 3)))
    assert len(read_trace(path, max_requests=1).shapes) == 1


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "a.csv",
            f"{AZURE}2023-11-16 18:15:46,374,many\n",
            "row 2: field GeneratedTokens is 'many'",
        ),
        ("a.csv", f"{AZURE}2023-11-16 18:15:46,0,1\n", "row 2: field ContextTokens is '0'"),
        ("a.csv", f"{AZURE}yesterday,1,1\n", "row 2: field TIMESTAMP is 'yesterday'"),
        ("a.csv", f"{AZURE}5,1,1\n4,1,1\n", "row 3: its timestamp is before"),
        ("a.csv", "when,how\n1,2\n", "row 2: field ContextTokens is missing"),
        ("a.jsonl", '{"timestamp": 0, "input_length": 1}', "row 1: field output_length is missing"),
        ("a.jsonl", '{"hash_ids": ["x"]}', "row 1: field hash_ids"),
        ("a.jsonl", "[1]", "row 1: .* is no object"),
        ("a.csv", AZURE, "no requests"),
        ("a.txt", "1", "a trace is a .csv"),
    ],
)
def test_a_bad_row_of_a_trace_is_named(write, name, text, says):
    with pytest.raises(BenchError, match=says):
        read_trace(write(name, text))
