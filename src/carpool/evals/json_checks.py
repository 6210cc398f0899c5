"""Checks of an answer that is to be JSON, by https://json-schema.org."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import regex
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from carpool.evals.answer import Answer
from carpool.evals.check import CheckFailure, Question, quoted
from carpool.evals.set_fields import FieldError
from carpool.evals.text_checks import REGEX_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """The whole text is JSON that `validator` takes (None: any JSON)."""

    validator: Validator | None
    name: str = "json_schema"

    async def fault(self, answer: Answer, question: Question) -> str | None:
        try:
            value = json.loads(answer.text)
        except (ValueError, RecursionError) as error:
            return f"{quoted(answer.text)} is no JSON: {error}"
        if self.validator is None:
            return None
        return await asyncio.to_thread(schema_fault, self.validator, value)


def make_validator(schema: Any, field: str) -> Validator:
    """Of the draft that the schema names, else 2020-12. It fetches nothing that the schema
    refers to, and its patterns have a time limit. Raises FieldError."""
    if not isinstance(schema, dict):
        raise FieldError(field, "must be a JSON schema, a mapping")
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
    except SchemaError as error:
        raise FieldError(f"{field}{_path(error)}", f"is no JSON schema: {error.message}") from None
    timed = extend(  # type: ignore[no-untyped-call]
        kind, {"pattern": _pattern, "patternProperties": _pattern_properties}
    )
    validator: Validator = timed(schema, registry=Registry())
    return validator


def schema_fault(validator: Validator, value: Any) -> str | None:
    """Where `value` is not what the schema says; None if it is. Raises CheckFailure."""
    try:
        first = next(iter(validator.iter_errors(value)), None)
    except Unresolvable as unresolved:
        raise CheckFailure(f"the schema refers to {unresolved}, which is not in it") from None
    except regex.error as error:
        raise CheckFailure(f"the schema has a pattern that cannot be used: {error}") from None
    except (TimeoutError, RecursionError):
        raise CheckFailure(
            f"the schema took over {REGEX_TIMEOUT_S:g} s on a pattern, or nests without end"
        ) from None
    if first is None:
        return None
    where = _path(first).lstrip(".")
    return f"{where}: {first.message[:200]}" if where else first.message[:200]


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Any:
    if validator.is_type(value, "string") and not _found(pattern, value):
        yield ValidationError(f"{quoted(value)} does not match {quoted(pattern)}")


def _pattern_properties(validator: Any, patterns: Any, value: Any, schema: Any) -> Any:
    if not validator.is_type(value, "object"):
        return
    for pattern, inner in patterns.items():
        for name, each in value.items():
            if _found(pattern, name):
                yield from validator.descend(each, inner, path=name, schema_path=pattern)


def _found(pattern: str, text: str) -> bool:
    return regex.search(pattern, text, timeout=REGEX_TIMEOUT_S, concurrent=True) is not None


def _path(error: SchemaError | ValidationError) -> str:
    """Where in the document, like .items[0].type"""
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.absolute_path
    )
