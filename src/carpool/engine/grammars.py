"""Grammars of constrained output, as llguidance's text: from a schema, a pattern, choices, tools.

What they cost to compile is found out by compiling them (`grammar_trial`). What is compiled
only once an output gets there, as regular expressions are, has to be measured beforehand.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from llguidance import LLMatcher

from carpool.engine.grammar_error import GrammarError
from carpool.engine.grammar_size import lark_size, regex_size
from carpool.engine.tool_calls import ToolCallStyle

MAX_GRAMMAR_CHARS = 64 * 1024
# Compiling regular expressions takes time that grows with the square of their length.
MAX_PATTERN_CHARS = 8 * 1024
MAX_MULTIPLE = 10_000
# Text that is repeated a fixed number of times is written out: 0.4 KiB for each character.
MAX_EXPANDED_CHARS = 20_000
# Small models get lost in white space, so there is an end to it; anyOf stands in for oneOf.
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n\t]{0,32}", "coerce_one_of": True}
_NO_PARAMETERS = {"properties": {}, "additionalProperties": False}


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """Grammar of the JSON that fits `schema`. Raises GrammarError if it is no JSON object."""
    return f"start: %json {_schema_text(schema)}\n"


def json_object_grammar() -> str:
    """Grammar of any JSON object."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """Grammar of the text that `pattern` (Rust syntax: no look-around) matches as a whole.

    Raises GrammarError for a pattern of more than MAX_PATTERN_CHARS, or of more than
    MAX_EXPANDED_CHARS with its repetitions written out.
    """
    _check_text("the regular expression", pattern, MAX_PATTERN_CHARS)
    _check_expanded("the regular expression", regex_size(pattern))
    return str(LLMatcher.grammar_from_regex(pattern))


def lark_grammar(text: str) -> str:
    """Grammar written in llguidance's variant of Lark.

    Raises GrammarError for a grammar of more than MAX_PATTERN_CHARS, or of more
    than MAX_EXPANDED_CHARS with its repetitions and references to terminals written out.
    """
    _check_text("the Lark grammar", text, MAX_PATTERN_CHARS)
    if not text.strip():
        raise GrammarError("the grammar is empty; give at least a start rule")
    _check_expanded("the Lark grammar", lark_size(text))
    for match in re.finditer(r"%json\s*", text):
        _check_schema(_json_at(text, match.end()))
    # Given as it is, text that begins with a brace would be read as another kind of grammar.
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def choice_grammar(choices: Sequence[str]) -> str:
    """Grammar of exactly one of `choices`.

    Raises GrammarError if there are none, or together they are over MAX_GRAMMAR_CHARS.
    """
    if not choices:
        raise GrammarError("the list is empty; give at least one string")
    _check_text("the choices", "".join(choices))
    # A terminal: as a rule, more than 2,000 of them are too many for the parser.
    return "start: CHOICE\nCHOICE: " + " | ".join(_literal(choice) for choice in choices) + "\n"


def tool_call_grammar(
    tools: Sequence[Mapping[str, Any]],
    style: ToolCallStyle,
    name: str | None = None,
    *,
    is_parallel: bool = True,
) -> str:
    """Grammar of valid calls of `tools` (OpenAI's list) in `style`, and nothing else.

    Any tool may be called, more than once if `is_parallel`; with `name` that function is
    called once. Raises GrammarError if there is no such tool, and over MAX_GRAMMAR_CHARS.
    """
    functions = [tool["function"] for tool in tools]
    if name is not None:
        functions = [function for function in functions if function["name"] == name]
    if not functions:
        raise GrammarError(f"no tool is named {name!r}" if name else "the list is empty")
    separator = "\n" if style is ToolCallStyle.HERMES else "; "
    repeats = f" ({_literal(separator)} call)*" if is_parallel and name is None else ""
    rules = [
        f"start: call{repeats}",
        "call: " + " | ".join(f"call_{i}" for i in range(len(functions))),
    ]
    for index, function in enumerate(functions):
        rules += _tool_rules(index, function, style)
    text = "\n".join(rules) + "\n"
    _check_length("the tools together", len(text))
    return text


def _tool_rules(index: int, function: Mapping[str, Any], style: ToolCallStyle) -> list[str]:
    quoted = json.dumps(function["name"], ensure_ascii=False)
    if style is ToolCallStyle.HERMES:
        opening, closing = f'<tool_call>\n{{"name": {quoted}, "arguments": ', "}\n</tool_call>"
    else:
        opening, closing = f'{{"name": {quoted}, "parameters": ', "}"
    schema = {"type": "object", **(function.get("parameters") or _NO_PARAMETERS)}
    return [
        f"call_{index}: {_literal(opening)} arguments_{index} {_literal(closing)}",
        f"arguments_{index}: %json {_schema_text(schema)}",
    ]


def _literal(text: str) -> str:
    """`text` as a Lark string, which takes JSON's escapes and no control characters."""
    return json.dumps(text)


def _json_at(text: str, start: int) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text, start)[0]
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"%json: the schema is not JSON: {error}") from error


def _schema_text(schema: Mapping[str, Any]) -> str:
    if not isinstance(schema, Mapping):
        raise GrammarError(f"the schema must be a JSON object, not {schema!r:.80}")
    try:
        text = json.dumps({**schema, "x-guidance": _JSON_OPTIONS}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarError(f"the schema is not JSON: {error}") from error
    _check_length("the schema", len(text))
    _check_schema(schema)
    return text


def _check_schema(schema: Any) -> None:
    """Raises GrammarError for what would take too long to compile, or too much memory."""
    num_chars = num_expanded = 0
    for node in _objects_in(schema):
        by_pattern = node.get("patternProperties")
        patterns = [node.get("pattern"), *(by_pattern if isinstance(by_pattern, Mapping) else ())]
        for pattern in patterns:
            if not isinstance(pattern, str):
                continue
            num_chars += len(pattern)
            _check_length("the schema's patterns", num_chars, MAX_PATTERN_CHARS)
            num_expanded += regex_size(pattern)
    _check_expanded("the schema's patterns", num_expanded)
    _check_multiples(schema)


def _check_multiples(schema: Any) -> None:
    """An automaton that divides by N has N states, and by several numbers their product."""
    product = 1
    for node in _objects_in(schema):
        value = node.get("multipleOf")
        if isinstance(value, int | float) and not isinstance(value, bool):
            product *= _without_point(Decimal(str(value)))
        if product > MAX_MULTIPLE:
            raise GrammarError(
                f"multipleOf: the numbers of a schema, without their decimal point and multiplied, "
                f"are {product:,}; at most {MAX_MULTIPLE:,} is taken"
            )


def _without_point(value: Decimal) -> int:
    """25 for 2.5, and 1000 for 1000; past the limit, whatever is past it."""
    _, digits, exponent = value.normalize().as_tuple()
    if not isinstance(exponent, int) or len(digits) + exponent > 20 or len(digits) > 20:
        return MAX_MULTIPLE + 1
    return max(1, int("".join(map(str, digits)) + "0" * max(exponent, 0)))


def _objects_in(schema: Any) -> Iterator[Mapping[str, Any]]:
    rest: list[Any] = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, Mapping):
            yield node
            rest.extend(node.values())
        elif isinstance(node, list):
            rest.extend(node)


def _check_text(what: str, text: str, limit: int = MAX_GRAMMAR_CHARS) -> None:
    _check_length(what, len(text), limit)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GrammarError(f"{what}: not Unicode text ({error.reason})") from error


def _check_length(what: str, length: int, limit: int = MAX_GRAMMAR_CHARS) -> None:
    if length > limit:
        raise GrammarError(f"{what}: {length:,} characters; at most {limit:,} are taken")


def _check_expanded(what: str, size: int) -> None:
    if size > MAX_EXPANDED_CHARS:
        raise GrammarError(
            f"{what}: {size:,} characters with all repetitions written out; "
            f"at most {MAX_EXPANDED_CHARS:,} are taken"
        )
