"""What each check lets pass, and what it says of what it does not."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from mock_engine import chat_body, json_reply, serving

from carpool.evals.answer import Answer, ToolCall
from carpool.evals.check import Question, Verdict, judge
from carpool.evals.hook_check import HookFile
from carpool.evals.read_check import read_check

QUESTION = Question("case", ({"role": "user", "content": "Hi"},))
WEATHER = ToolCall("get_weather", '{"city": "Paris", "days": 2}')
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 3}}}


def verdict(check: Any, answer: Answer | str, hooks: HookFile | None = None) -> Verdict:
    made = read_check(check, hooks or HookFile(Path("set.yaml"), None, False))
    answer = Answer(text=answer) if isinstance(answer, str) else answer
    return asyncio.run(judge(made, answer, QUESTION))


def calling(*calls: ToolCall) -> Answer:
    return Answer(tool_calls=calls, finish_reason="tool_calls")


@pytest.mark.parametrize(
    ("check", "answer"),
    [
        ({"exact": "Paris"}, " Paris\n"),
        ({"exact": ["yes", "Yes."]}, "Yes."),
        ({"exact": "PARIS", "ignore_case": True}, "paris"),
        ({"contains": ["Par", "is"]}, "It is Paris"),
        ({"not_contains": "Rome"}, "Paris"),
        ({"regex": r"^\d{4}$"}, "1789"),
        ({"not_regex": "sorry", "ignore_case": True}, "Here you are"),
        ({"number": 1789}, "In 1,789."),
        ({"number": -0.5, "tolerance": 0.01}, "first 3, then -.505"),
        ({"number": 3e8, "relative_tolerance": 0.01}, "2.998e8 m/s"),
        ("json", "[1, 2]"),
        ({"json_schema": {"type": "array", "items": {"type": "integer"}}}, "[1, 2]"),
        ("said", Answer(reasoning="hm")),
        ({"finish_reason": ["stop", "length"]}, Answer(finish_reason="length")),
        ({"tokens": {"prompt_min": 3}}, Answer(prompt_tokens=3)),
        ("tool_call", calling(WEATHER)),
        ({"tool_call": "get_weather"}, calling(ToolCall("other", "{}"), WEATHER)),
        ({"tool_call": {"name": "get_weather", "arguments": {"city": "Paris"}}}, calling(WEATHER)),
        ("no_tool_call", "It is sunny."),
    ],
)  # fmt: skip
def test_what_passes(check: Any, answer: Answer | str) -> None:
    assert verdict(check, answer).has_passed


@pytest.mark.parametrize(
    ("check", "answer", "reason"),
    [
        ({"exact": "Paris"}, "paris", '"paris" is not "Paris"'),
        ({"contains": "Rome"}, "Paris", '"Paris" lacks "Rome"'),
        ({"not_contains": "Par"}, "Paris", '"Paris" contains "Par"'),
        ({"regex": "^x"}, "y", '"y" does not match "^x"'),
        ({"not_regex": "y"}, "y", '"y" matches "y"'),
        ({"number": 3}, "three", '"three" has no number in it'),
        ({"number": 3, "tolerance": 0.5}, "3 or 4", "its last number is 4, not 3 give or take 0.5"),
        ("json", "{'a': 1}", "is no JSON"),
        ({"json_schema": {"items": {"type": "integer"}}}, '[1, "x"]', "[1]: 'x' is not of type"),
        ({"json_schema": {"$ref": "https://example.com/x"}}, "1", "which is not in it"),
        ("said", " \n", "the answer is empty"),
        ({"finish_reason": "stop"}, Answer(finish_reason="length"), "ended with 'length'"),
        ({"tokens": {"prompt_max": 2}}, Answer(prompt_tokens=3), "3 prompt tokens are more than 2"),
        ({"tokens": {"prompt_max": 2}}, Answer(), "the engine reports no prompt tokens"),
        ("tool_call", "<tool_call>", 'it calls no tool, not a tool and says "<tool_call>"'),
        ({"tool_call": "b"}, calling(WEATHER), "it calls get_weather, not b"),
        ({"tool_call": "a"}, calling(ToolCall("a", "{")), "the arguments of a are no JSON"),
        ({"tool_call": "a"}, calling(ToolCall("a", "[]")), "the arguments of a are no object"),
        ({"tool_call": {"arguments": {"days": 3}}}, calling(WEATHER), "days = 2, not 3"),
        ({"tool_call": {"arguments": {"x": 3}}}, calling(WEATHER), "called without x"),
        ({"tool_call": {"arguments_schema": CITY}}, calling(WEATHER), "get_weather: city: 'Paris'"),
        ("no_tool_call", calling(WEATHER), "it calls get_weather"),
    ],
)  # fmt: skip
def test_what_does_not_pass_and_why(check: Any, answer: Answer | str, reason: str) -> None:
    found = verdict(check, answer)
    assert not found.has_passed
    assert reason in str(found.reason)


@pytest.mark.parametrize(
    "check",
    [{"regex": "^(a|aa)+$"}, {"json_schema": {"pattern": "^(a|aa)+$"}}],
    ids=["regex", "in a schema"],
)
def test_a_catastrophic_pattern_holds_nobody_up(check: Any) -> None:
    text = "a" * 60 + "!"
    start = time.monotonic()
    found = verdict(check, f'"{text}"' if "json_schema" in check else text)
    assert found.is_undone
    assert "took over 1 s" in str(found.reason)
    assert time.monotonic() - start < 30


def hooks(folder: Path, text: str) -> HookFile:
    (folder / "hooks.py").write_text(text)
    return HookFile(folder / "set.yaml", "hooks.py", True)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("return answer['text'] == 'x' and question['case_id'] == 'case'", None),
        ("return None", None),
        ("return 'too long'", "too long"),
        ("return False", "check says no"),
        ("return 3", "check returned 3, but must return True, False, None or a reason"),
        ("return 1 / 0", "check raised ZeroDivisionError: division by zero"),
    ],
)
def test_a_hook(tmp_path: Path, body: str, reason: str | None) -> None:
    file = hooks(tmp_path, f"def check(answer, question):\n    {body}\n")
    assert verdict({"hook": "check"}, "x", file).reason == reason


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("It is polite, so yes", None),
        ("yes, but no", 'the judge said "yes, but no"'),
        ("Maybe", 'the judge said neither yes nor no: "Maybe"'),
    ],
)
def test_a_judge_sees_question_and_answer(said: str, reason: str | None) -> None:
    with serving(json_reply(chat_body(said))) as engine:
        check = {"judge": {"question": "Is it polite?", "url": engine.url, "model": "judge"}}
        assert verdict(check, "Good day!").reason == reason
    asked = engine.requests[-1].json
    assert asked["temperature"] == 0
    assert "Good day!" in asked["messages"][1]["content"]
    assert "Is it polite?" in asked["messages"][1]["content"]


def test_a_judge_that_is_away_is_no_verdict_on_the_answer() -> None:
    check = {"judge": {"question": "?", "url": "http://127.0.0.1:1", "model": "m"}}
    found = verdict(check, "x")
    assert found.is_undone
    assert "the judge gave no answer" in str(found.reason)
