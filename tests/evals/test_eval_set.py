"""Eval sets are read or refused, with the file, the case and the field."""

import json
from pathlib import Path

import pytest

from carpool.evals.eval_set import EvalSetError, read_eval_set, smoke_set

HOOKS = "def is_short(answer, question):\n    return len(answer['text']) < 10\n"


def written(folder: Path, text: str, name: str = "set.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def case(checks: str = "[said]", more: str = "") -> str:
    return f"cases:\n- {{id: one, prompt: Hi, checks: {checks}{more}}}\n"


def test_a_set_in_yaml(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
name: team
defaults: {temperature: 0, max_tokens: 9}
cases:
  - id: capital
    messages: [{role: user, content: "The capital of France?"}]
    sampling: {max_tokens: 5, stop: ["."]}
    stream: both
    repeats: 3
    tags: geography
    checks:
      - contains: Paris
        ignore_case: true
      - {number: 3.5, relative_tolerance: 0.1}
      - said
""",
    )
    read = read_eval_set(path)
    (only,) = read.cases
    assert (read.name, only.case_id, only.tags) == ("team", "capital", ("geography",))
    assert only.streams == (False, True)
    assert only.repeats == 3
    assert [check.name for check in only.checks] == ["contains", "number", "said"]
    body = only.body(True)
    assert body["max_tokens"] == 5
    assert body["temperature"] == 0
    assert body["stream_options"] == {"include_usage": True}


def test_a_set_in_json_lines_says_the_same(tmp_path: Path) -> None:
    lines = [
        {"name": "team", "defaults": {"temperature": 0}},
        {"id": "a", "prompt": "Say \u2028 hello", "checks": [{"exact": "hello"}]},
        {"id": "b", "prompt": {"repeat": "x ", "times": 3, "after": "End."}},
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    read = read_eval_set(written(tmp_path, text, "set.jsonl"))
    assert read.name == "team"
    assert [case.case_id for case in read.cases] == ["a", "b"]
    assert read.cases[1].messages[0]["content"] == "x x x End."


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (case("[{regex: '(a'}]"), "cases[0] (id 'one'): checks[0].regex: '(a' is no pattern"),
        (case("[said, {json_schema: {type: objct}}]"), "checks[1].json_schema.type: is no JSON"),
        (case("[{json_schema: {pattern: '(a'}}]"), "checks[0].json_schema.pattern: is no JSON"),
        (case("[{json_schema: 3}]"), "checks[0].json_schema: must be a JSON schema"),
        (case("[{contain: x}]"), "checks[0]: must name one check, not contain; there are: "),
        (case("[{contains: x, exact: y}]"), "must name one check, not contains and exact"),
        (case("[{contains: x, ignorecase: true}]"), "checks[0].ignorecase: there is no such"),
        (case("[{contains: []}]"), "checks[0].contains: must be a text"),
        (case("[{number: many}]"), "checks[0].number: must be a number, not 'many'"),
        (case("[{number: 1, tolerance: -1}]"), "checks[0].tolerance: must be at least 0"),
        (case("[{tool_call: {nme: x}}]"), "checks[0].tool_call.nme: there is no such field"),
        (case("[{tokens: {prompt_min: -1}}]"), "checks[0].tokens.prompt_min: must be a whole"),
        (case("[{judge: {question: ok, url: nowhere}}]"), "checks[0].judge.url: nowhere is no"),
        (case("[{hook: f}]"), "checks[0].hook: the set names no file of hooks"),
        (case(more=", colour: red"), "colour: there is no such field"),
        (case(more=", stream: maybe"), "stream: must be true, false or both, not 'maybe'"),
        (case(more=", repeats: 0"), "repeats: must be from 1 to 1000, not 0"),
        (case(more=", sampling: {stream: true}"), "sampling.stream: has a field of its own"),
        (case(more=", messages: [{role: user, content: x}]"), "prompt: and messages exclude"),
        ("cases:\n- {prompt: Hi}\n", "cases[0]: id: is missing"),
        ("cases:\n- {id: a}\n", "cases[0] (id 'a'): messages: is missing"),
        ("cases:\n- {id: a, messages: [{role: boss, content: x}]}\n", "[0].role: is 'boss'"),
        ("cases:\n- {id: a, messages: [{role: user}]}\n", "messages[0].content: is missing"),
        ("cases:\n- {id: a, prompt: x}\n- {id: a, prompt: y}\n", "'a' is also the id of cases[0]"),
        ("cases:\n- {id: a, id: b, prompt: x}\n", "the field 'id' is there twice"),
        ("cases: []\n", "has no cases"),
        ("- a\n", "must be a mapping with a list of cases"),
        ("cases: [\n", "is no YAML at line"),
        ("colour: red\ncases:\n- {id: a, prompt: x}\n", "colour: there is no such field"),
        ("defaults: {x: !!python/name:os.system }\ncases: []\n", "is no YAML"),
        ("cases:\n- &a {id: a, prompt: x, tools: [*a]}\n", "tools: cannot be sent as JSON"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(EvalSetError) as error:
        read_eval_set(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"id": "a", "prompt": "x"}\n{"id": ', "line 2 is no JSON"),
        ('{"id": "a", "prompt": "x", "prompt": "y"}', "the field 'prompt' is there twice"),
        ('{"id": "a", "prompt": "x"}\n\n{"id": "a", "prompt": "x"}', "line 3: id: 'a' is also"),
        ("7", "line 1: it must be a case"),
    ],
)
def test_what_is_wrong_in_json_lines_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(EvalSetError) as error:
        read_eval_set(written(tmp_path, text, "set.jsonl"))
    assert told in str(error.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(EvalSetError, match="cannot read"):
        read_eval_set(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EvalSetError, match="is not UTF-8"):
        read_eval_set(tmp_path / "binary.yaml")


def test_hooks_are_run_only_when_they_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(f"{HOOKS}open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    path = written(tmp_path, "hooks: hooks.py\n" + case("[{hook: is_short}]"))
    with pytest.raises(EvalSetError, match="pass --allow-hooks if you trust that file"):
        read_eval_set(path)
    assert not (tmp_path / "ran").exists()
    read_eval_set(path, allow_hooks=True)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("hooks", "text", "told"),
    [
        ("hooks.py", "raise KeyError('x')", "hooks.py raised KeyError as it was loaded"),
        ("hooks.py", "def (", "hooks.py raised SyntaxError"),
        ("hooks.py", "other = 3", "hooks.py has no function 'is_short'"),
        ("../hooks.py", HOOKS, "must be a .py file in the folder of the set"),
        ("none.py", HOOKS, "there is no "),
    ],
)
def test_hooks_that_cannot_be_used(tmp_path: Path, hooks: str, text: str, told: str) -> None:
    (tmp_path / "set").mkdir()
    for folder in (tmp_path, tmp_path / "set"):
        (folder / "hooks.py").write_text(text)
    path = written(tmp_path / "set", f"hooks: {hooks}\n" + case("[{hook: is_short}]"))
    with pytest.raises(EvalSetError) as error:
        read_eval_set(path, allow_hooks=True)
    assert told in str(error.value)
    assert "checks[0].hook" in str(error.value)


def test_the_built_in_set_covers_what_upgrades_break() -> None:
    tags = {tag for case in smoke_set().cases for tag in case.tags}
    assert tags >= {"template", "stop", "tools", "json", "long", "unicode"}
    assert {len(case.streams) for case in smoke_set().cases} == {1, 2}
