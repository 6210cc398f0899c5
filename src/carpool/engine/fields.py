"""Field types of API requests. Each refuses with a sentence that holds its limits."""

import re
from collections.abc import Callable
from typing import Any

from pydantic import BeforeValidator, PlainValidator

MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1024
MAX_WHOLE = 2**63 - 1
MAX_REQUEST_ID_LENGTH = 128
MAX_LOGIT_BIAS = 100

_REQUEST_ID = re.compile(rf"[A-Za-z0-9._:\-]{{1,{MAX_REQUEST_ID_LENGTH}}}")
_TOKEN_ID = re.compile(r"[0-9]{1,10}")


def at_most(num_entries: int) -> BeforeValidator:
    """A list that is not too long, which is found out before its entries are looked at."""

    def check(value: Any) -> Any:
        if isinstance(value, list) and len(value) > num_entries:
            raise ValueError(f"at most {num_entries:,} work")
        return value

    return BeforeValidator(check)


def number(low: float, high: float, *, above: bool = False) -> PlainValidator:
    """A number in [low, high], or (low, high] if `above`; null passes as None.

    Written so that NaN, which is on neither side of anything, fails.
    """
    limits = f"above {low:g} and at most {high:g}" if above else f"between {low:g} and {high:g}"

    def check(value: Any) -> float | None:
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and low <= value <= high and not (above and value == low)):
            raise ValueError(f"must be a number {limits}")
        return float(value)

    return PlainValidator(check)


def whole(low: int, high: int | None = None) -> PlainValidator:
    """A whole number from `low` to `high`, also written as 8.0; null passes as None."""
    limits = f"of at least {low:,}" if high is None else f"between {low:,} and {high:,}"

    def check(value: Any) -> int | None:
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or value < low or (high is not None and value > high):
            raise ValueError(f"must be a whole number {limits}")
        if value > MAX_WHOLE:
            raise ValueError(f"must be at most {MAX_WHOLE:,}")
        return int(value)

    return PlainValidator(check)


def _stop_strings(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise ValueError("must be a string or a list of strings")
    if len(stops) > MAX_STOP_STRINGS:
        raise ValueError(f"stop has {len(stops)} strings, but at most {MAX_STOP_STRINGS} work")
    if "" in stops:
        raise ValueError("a stop string must have at least one character")
    if (longest := max(map(len, stops), default=0)) > MAX_STOP_CHARS:
        raise ValueError(
            f"stop has a string of {longest:,} characters, but at most {MAX_STOP_CHARS:,} work"
        )
    return tuple(dict.fromkeys(stops))


def _logit_bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise ValueError("must be an object from token ids to numbers")
    return tuple((_bias_key(key), _bias(key, bias)) for key, bias in value.items())


def _bias_key(key: str) -> int:
    if not _TOKEN_ID.fullmatch(key):
        raise ValueError(f'logit_bias has the key "{key[:40]}", but keys must be token ids')
    return int(key)


def _bias(key: str, bias: Any) -> float:
    is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
    if not (is_number and -MAX_LOGIT_BIAS <= bias <= MAX_LOGIT_BIAS):
        raise ValueError(
            f"logit_bias of token {key} must be a number between "
            f"{-MAX_LOGIT_BIAS} and {MAX_LOGIT_BIAS}"
        )
    return float(bias)


def _schema(value: Any) -> dict[str, Any] | str | None:
    if value is not None and not isinstance(value, dict | str):
        raise ValueError("must be a JSON schema: an object, or its text")
    return value


def check_request_id(value: Any) -> str | None:
    """Raises ValueError unless it can stand in a header and in a log line as it is."""
    if value is not None and not (isinstance(value, str) and _REQUEST_ID.fullmatch(value)):
        raise ValueError(
            f"must be 1 to {MAX_REQUEST_ID_LENGTH} letters, digits or any of '.', '_', ':', '-'"
        )
    return value


def refuse(message: str, *, unless: Callable[[Any], bool]) -> PlainValidator:
    """A field that works only in one setting, and says so in any other."""

    def check(value: Any) -> Any:
        if not unless(value):
            raise ValueError(message)
        return value

    return PlainValidator(check)


STOP_STRINGS = PlainValidator(_stop_strings)
SCHEMA = PlainValidator(_schema)
LOGIT_BIAS = PlainValidator(_logit_bias)
REQUEST_ID = BeforeValidator(check_request_id)
