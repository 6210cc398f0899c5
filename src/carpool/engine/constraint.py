"""Which grammar a request's output has to follow, out of the ways to ask for one."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from carpool.engine.chat_protocol import ChatRequest, NamedTool
from carpool.engine.errors import invalid
from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammars import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
    tool_call_grammar,
)
from carpool.engine.protocol import GenerationFields
from carpool.engine.tool_calls import ToolCallStyle


class Constraint(NamedTuple):
    """A grammar and the field that asked for it."""

    field: str
    grammar: str


def output_constraint(fields: GenerationFields) -> Constraint | None:
    """Raises ApiError (400) for a malformed constraint, or for two."""
    found = []
    for field, kind, value in _wishes(fields):
        try:
            found.append(Constraint(field, _grammar(kind, value)))
        except GrammarError as error:
            raise invalid(f"{field}: {error}", field) from error
    if len(found) > 1:
        raise invalid(
            f"{found[0].field} and {found[1].field} both constrain the output; send one of them",
            found[1].field,
        )
    return found[0] if found else None


def tool_constraint(
    request: ChatRequest, style: ToolCallStyle, output: Constraint | None
) -> Constraint | None:
    """The grammar of a chat that may or must call tools; `output` is for its other answers.

    Raises ApiError (400).
    """
    tools = [tool.model_dump(exclude_unset=True) for tool in request.usable_tools]
    choice = request.tool_choice
    is_forced = choice == "required" or isinstance(choice, NamedTool)
    if is_forced and output is not None:
        raise invalid(
            f"{output.field} cannot constrain an answer that tool_choice makes a tool call; "
            f"send one of them",
            output.field,
        )
    if not tools or not (is_forced or request.response_format):
        return output
    name = choice.name if isinstance(choice, NamedTool) else None
    is_parallel = request.parallel_tool_calls is not False
    try:
        calls = tool_call_grammar(tools, style, name, is_parallel=is_parallel)
    except GrammarError as error:
        raise invalid(f"tools: {error}", "tools") from error
    if is_forced:
        return Constraint("tools", calls)
    if output is None or output.field != "response_format":
        return output
    return Constraint("response_format", _either(calls, output.grammar))


def _wishes(fields: GenerationFields) -> Iterator[tuple[str, str, Any]]:
    """(field, kind, value) of every constraint that is there."""
    formatted = fields.response_format
    if formatted is not None and formatted.type == "json_object":
        yield "response_format", "json_object", None
    elif formatted is not None and formatted.json_schema is not None:
        yield "response_format", "json", formatted.json_schema.json_schema
    structured = fields.structured_outputs
    for kind in ("json", "regex", "choice", "grammar"):
        if (value := getattr(fields, f"guided_{kind}")) is not None:
            yield f"guided_{kind}", kind, value
        attribute = "json_schema" if kind == "json" else kind
        if (value := getattr(structured, attribute, None)) is not None:
            yield f"structured_outputs.{kind}", kind, value


def _grammar(kind: str, value: Any) -> str:
    match kind:
        case "json_object":
            return json_object_grammar()
        case "json":
            return json_schema_grammar(_parsed(value) if isinstance(value, str) else value)
        case "regex":
            return regex_grammar(value)
        case "choice":
            return choice_grammar(value)
        case _:
            return lark_grammar(value)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error


def _either(calls: str, answer: str) -> str:
    """One of two Lark grammars of this program, which both begin with their start rule."""
    calls = calls.replace("start:", "calls:", 1)
    answer = answer.replace("start:", "answer:", 1)
    return f"start: calls | answer\n{calls}{answer}"
