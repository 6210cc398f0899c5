"""The gateway's log: one record a line, whatever is in it, and no key in any of them."""

import json
import logging
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from carpool.store.key_text import redact_keys

ACCESS = "carpool.access"
_QUOTED = frozenset(" \"'=")


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


def set_up_logging(log_format: LogFormat, *, has_access_lines: bool) -> None:
    """Everything of this process goes to stderr in that format: warnings and worse and, if
    wanted, a line per request."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format is LogFormat.JSON else TextFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    level = logging.INFO if has_access_lines else logging.WARNING
    logging.getLogger(ACCESS).setLevel(level)


class TextFormatter(logging.Formatter):
    """For people: the time, the level, the message, `name=value` for the fields. Lines of a
    traceback are indented, so that nothing in it looks like another record."""

    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), record.levelname, _one_line(record.getMessage())]
        words += [f"{name}={_value(value)}" for name, value in _fields(record).items()]
        lines = [" ".join(words)]
        lines += [f"  {_one_line(line)}" for line in _traceback(self, record).splitlines()]
        return redact_keys("\n".join(lines))


class JsonFormatter(logging.Formatter):
    """For programs: an object a line, with `time`, `level`, `logger`, `message`, the fields, and
    `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        content = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if traceback := _traceback(self, record):
            content["exception"] = traceback
        return redact_keys(json.dumps(content, default=str))


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _value(value: Any) -> str:
    """Quoted unless it is one word."""
    text = "-" if value is None else str(value)
    is_word = text and text.isprintable() and not _QUOTED & set(text)
    return text if is_word else json.dumps(text)


def _one_line(text: str) -> str:
    """What could end a line, or make a terminal do something, is escaped."""
    if text.isprintable():
        return text
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return "".join(escaped)
