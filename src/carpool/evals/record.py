"""Turns requests that were recorded into cases of an eval set."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from carpool.store.recorded_requests import RecordedRequest

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop",
    "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "response_format",
    "chat_template_kwargs", "reasoning_effort", "parallel_tool_calls",
)  # fmt: skip


def cases_of(requests: Iterable[RecordedRequest]) -> list[dict[str, Any]]:
    """A case for each conversation, as an eval set has it. Its checks are what the request
    itself asks for: an answer, its schema, its tool. What else an answer must be is for
    people to add."""
    cases: dict[str, dict[str, Any]] = {}
    for request in requests:
        body = json.loads(request.body)
        case = _case(request.request_id, body)
        if case is not None:
            told = json.dumps([case["messages"], case.get("tools")], sort_keys=True)
            cases.setdefault(told, case)
    return list(cases.values())


def as_yaml(name: str, cases: list[dict[str, Any]]) -> str:
    """The file of an eval set."""
    document = {"name": name, "cases": cases}
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return text


def _case(case_id: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    case: dict[str, Any] = {"id": case_id, "tags": ["recorded"], "messages": messages}
    for name in ("tools", "tool_choice"):
        if body.get(name):
            case[name] = body[name]
    sampling = {name: body[name] for name in _SAMPLING if body.get(name) is not None}
    if sampling:
        case["sampling"] = sampling
    if body.get("stream") is True:
        case["stream"] = True
    case["checks"] = _checks(body)
    return case


def _checks(body: Mapping[str, Any]) -> list[Any]:
    checks: list[Any] = ["said"]
    schema = _schema(body.get("response_format"))
    if schema is True:
        checks.append("json")
    elif schema is not None:
        checks.append({"json_schema": schema})
    choice = body.get("tool_choice")
    if choice == "none":
        checks.append("no_tool_call")
    elif choice == "required":
        checks.append("tool_call")
    elif isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        checks.append({"tool_call": choice["function"].get("name")})
    return checks


def _schema(response_format: Any) -> Any:
    """What JSON is asked for; True for any, None for none."""
    if not isinstance(response_format, dict):
        return None
    match response_format.get("type"):
        case "json_object":
            return True
        case "json_schema":
            inner = response_format.get("json_schema")
            return inner.get("schema") if isinstance(inner, dict) else None
    return None


class _Dumper(yaml.SafeDumper):
    """Longer texts as blocks, and nothing by reference: a file to be read and edited."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
