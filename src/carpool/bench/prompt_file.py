"""Prompts from a file: ShareGPT, chat messages, plain prompts; as JSON, JSON lines, CSV, text."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from carpool.bench.errors import BenchError
from carpool.bench.prompts import Conversation, Message
from carpool.bench.rows import Row, csv_rows, json_rows, jsonl_rows, read_lines

# ShareGPT's names for who speaks.
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "tool": "tool",
}
_TEXT_FIELDS = ("prompt", "text", "question", "input", "content")
_LENGTH_FIELDS = ("max_tokens", "output_tokens", "output_len")
_EXTRA_FIELDS = ("tools", "tool_choice", "response_format", "temperature", "top_p", "stop")


def read_conversations(path: Path) -> list[Conversation]:
    """By the file's ending: .json (a list), .jsonl, .csv, else a prompt a line.

    An entry has `messages` (as in the chat API), `conversations` (ShareGPT), or a `prompt`; with
    `max_tokens` where its answer has a bound of its own. Raises BenchError.
    """
    read = _READERS.get(path.suffix.lower(), _text_rows)
    found = [conversation for row in read(path) if (conversation := _conversation(row)) is not None]
    if not found:
        raise BenchError(f"{path}: no prompts in it")
    return found


def _text_rows(path: Path) -> Iterator[Row]:
    for number, line in read_lines(path):
        yield Row(path, number, line)


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".json": json_rows,
    ".jsonl": jsonl_rows,
    ".ndjson": jsonl_rows,
    ".csv": csv_rows,
}


def _conversation(row: Row) -> Conversation | None:
    """None: nobody asks anything in it."""
    if isinstance(row.value, str):
        return Conversation((({"role": "user", "content": row.value},),))
    fields = row.fields
    if "messages" in fields:
        messages = [_message(row, each) for each in _list(row, "messages")]
    elif "conversations" in fields:
        messages = [_sharegpt(row, each) for each in _list(row, "conversations")]
    else:
        name = next((name for name in _TEXT_FIELDS if fields.get(name)), None)
        if name is None:
            raise row.error(
                f"none of the fields messages, conversations, {', '.join(_TEXT_FIELDS)} is there"
            )
        if not isinstance(fields[name], str):
            raise row.error(f"field {name} must be text")
        messages = [{"role": "user", "content": fields[name]}]
    turns = tuple(_turns(messages))
    if not turns:
        return None
    extra = {name: fields[name] for name in _EXTRA_FIELDS if fields.get(name) is not None}
    return Conversation(turns, _max_tokens(row), {} if row.path.suffix == ".csv" else extra)


def _list(row: Row, field: str) -> list[Any]:
    value = row.fields[field]
    if not isinstance(value, list):
        raise row.error(f"field {field} must be a list")
    return value


def _message(row: Row, value: Any) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise row.error("an entry of messages must be an object with a role")
    return value


def _sharegpt(row: Row, value: Any) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("value"), str):
        raise row.error("an entry of conversations must be an object with from and value")
    role = _ROLES.get(str(value.get("from")))
    if role is None:
        raise row.error(f"field from is {value.get('from')!r}; it must be {', '.join(_ROLES)}")
    return {"role": role, "content": value["value"]}


def _turns(messages: list[Message]) -> Iterator[tuple[Message, ...]]:
    """Cut after each of the user's messages (or a tool's result that no other follows)."""
    turn: list[Message] = []
    for index, message in enumerate(messages):
        turn.append(message)
        follows = messages[index + 1]["role"] if index + 1 < len(messages) else "assistant"
        if message["role"] in ("user", "tool") and follows not in ("user", "tool"):
            yield tuple(turn)
            turn = []


def _max_tokens(row: Row) -> int | None:
    for name in _LENGTH_FIELDS:
        if row.fields.get(name) not in (None, ""):
            return row.count_of(name, least=1)
    return None
