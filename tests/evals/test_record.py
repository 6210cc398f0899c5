"""Recorded requests become cases, and those are an eval set."""

import json
from pathlib import Path
from typing import Any

from carpool.evals.eval_set import read_eval_set
from carpool.evals.record import as_yaml, cases_of
from carpool.store.recorded_requests import RecordedRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def recorded(request_id: str, text: str = "Hi", **fields: Any) -> RecordedRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **fields}
    return RecordedRequest(request_id, 1.0, "key", "ada", "m", json.dumps(body))


def test_what_was_asked_is_a_set_that_can_be_run(tmp_path: Path) -> None:
    text = "Line one\n  line two: {x}\n\nÜ 🚢 - end "
    requests = [
        recorded("cp-1", text, temperature=0.2, user="ada", logprobs=True),
        recorded("cp-2", text, temperature=0.9),
        recorded("cp-3", stream=True, response_format={"type": "json_object"}),
        recorded("cp-4", "B", tools=[TOOL], tool_choice="required"),
        recorded(
            "cp-5",
            "C",
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        ),
        RecordedRequest("cp-6", 1.0, "key", "ada", "m", "{}"),
    ]
    path = tmp_path / "set.yaml"
    path.write_text(as_yaml("team", cases_of(requests)))
    read = read_eval_set(path)
    assert read.name == "team"
    first, streamed, calling, shaped = read.cases
    assert first.case_id == "cp-1"
    assert first.messages[0]["content"] == text
    assert first.sampling == {"temperature": 0.2}
    assert streamed.streams == (True,)
    assert [check.name for check in streamed.checks] == ["said", "json"]
    assert [check.name for check in calling.checks] == ["said", "tool_call"]
    assert calling.body(False)["tools"] == [TOOL]
    assert [check.name for check in shaped.checks] == ["said", "json_schema"]
