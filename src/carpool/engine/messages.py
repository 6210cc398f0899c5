"""The messages of a chat request, checked before the chat template sees them."""

from typing import Any

from carpool.engine.errors import show

MAX_MESSAGES = 4096
ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(value: Any) -> list[dict[str, Any]]:
    """Messages with the roles templates know: `developer` is OpenAI's newer word for `system`.

    Parts of content are the chat template's matter. Raises ValueError.
    """
    if not isinstance(value, list):
        raise ValueError("must be a list of messages")
    if len(value) > MAX_MESSAGES:
        raise ValueError(f"messages has {len(value):,} entries, but at most {MAX_MESSAGES:,} work")
    if not value:
        raise ValueError("messages is empty; it needs at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise ValueError(f"{where} is {show(message)}, but must be an object")
    role = message.get("role")
    if role not in ROLES:
        raise ValueError(f"{where}.role is {show(role)}, but must be one of {', '.join(ROLES)}")
    if message.get("tool_calls") is not None:
        _check_tool_calls(message["tool_calls"], f"{where}.tool_calls")
    content = message.get("content")
    if content is None and not (role == "assistant" and message.get("tool_calls")):
        raise ValueError(f"{where}.content is missing; a message of role {role} needs it")
    if content is not None and not isinstance(content, str | list):
        raise ValueError(
            f"{where}.content is {show(content)}, but must be a string or a list of parts"
        )
    return {**message, "role": "system"} if role == "developer" else message


def _check_tool_calls(calls: Any, where: str) -> None:
    if not isinstance(calls, list):
        raise ValueError(f"{where} is {show(calls)}, but must be a list")
    for index, call in enumerate(calls):
        match call:
            case {"function": {"name": str(), "arguments": str() | dict()}}:
                pass
            case _:
                raise ValueError(
                    f"{where}[{index}].function must have a name (a string) and arguments "
                    f"(JSON text)"
                )
