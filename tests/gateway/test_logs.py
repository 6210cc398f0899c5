"""The log: a record is a line, keys are not in it, programs can read it."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.gateway.logs import JsonFormatter, TextFormatter
from carpool.store.key_text import new_key_text

KEY = new_key_text(bytes(range(40)))
SECRET = KEY.split("-", 2)[2]
FORGED = "no such model\n2030-01-01T00:00:00.000Z INFO request\r\x1b[2J\u2028outcome=completed"


def record(message, *args, fields=None, error=None):
    exc_info = (type(error), error, error.__traceback__) if error else None
    made = logging.LogRecord("carpool.x", logging.WARNING, "f.py", 1, message, args, exc_info)
    if fields is not None:
        made.fields = fields
    return made


def raised(error):
    try:
        raise error
    except type(error) as caught:
        return caught


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
@given(text=st.text())
def test_a_record_is_one_line_whatever_it_holds(formatter, text):
    line = formatter.format(record("%s", text, fields={"person": text}))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_nobody_can_write_a_record_of_their_own():
    line = TextFormatter().format(record("refused: %s", FORGED, fields={"person": FORGED}))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    text = TextFormatter().format(record("failed", error=raised(ValueError(FORGED))))
    first, *others = text.splitlines()
    assert first.endswith("WARNING failed")
    assert others
    assert all(line.startswith("  ") for line in others)


def test_a_value_of_several_words_is_quoted():
    fields = {"person": 'Ada "the" First', "status": 200, "ttft_ms": None, "is_stream": True}
    line = TextFormatter().format(record("request", fields=fields))
    assert line.endswith(
        r'WARNING request person="Ada \"the\" First" status=200 ttft_ms=- is_stream=True'
    )


def test_json_keeps_types_and_says_where_it_comes_from():
    line = JsonFormatter().format(record("a %d", 7, fields={"status": 200, "ttft_ms": None}))
    content = json.loads(line)
    assert content.pop("time").endswith("Z")
    assert content == {
        "level": "warning",
        "logger": "carpool.x",
        "message": "a 7",
        "status": 200,
        "ttft_ms": None,
    }


def test_json_has_the_traceback():
    line = JsonFormatter().format(record("failed", error=raised(ValueError("because"))))
    assert "ValueError: because" in json.loads(line)["exception"]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_key_is_in_it_wherever_it_came_from(formatter):
    error = raised(RuntimeError(f"headers: {{'authorization': 'Bearer {KEY}'}}"))
    line = formatter.format(
        record("refused %s and cpa%s", KEY, KEY[2:], fields={"model": KEY}, error=error)
    )
    assert SECRET not in line
    assert line.count("-***") == 4
