"""Tools for a model whose chat template knows none: told in plain messages, Hermes style."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from carpool.engine.chat_template import Message, content_text


def tools_system_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """System message text that offers `tools` (OpenAI's list) and says how to call them.

    The wording is that of the Hermes and Qwen 2.5 chat templates.
    """
    signatures = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "# Tools\n\n"
        "You may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n"
        f"<tools>\n{signatures}\n</tools>\n\n"
        "For each function call, return a json object with function name and arguments within "
        "<tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def messages_with_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[Message]:
    """Messages a template without tools can render: tools in the system message, calls and
    their results as text.

    Raises ChatTemplateError for content that is not text.
    """
    plain = [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    if not tools:
        return plain
    prompt = tools_system_prompt(tools)
    if plain and plain[0].get("role") == "system":
        return [{**plain[0], "content": f"{plain[0]['content']}\n\n{prompt}"}, *plain[1:]]
    return [{"role": "system", "content": prompt}, *plain]


def _plain_message(message: Message, where: str) -> Message:
    text = content_text(message.get("content"), f"{where}.content")
    if message.get("role") == "tool":
        return {"role": "user", "content": f"<tool_response>\n{text}\n</tool_response>"}
    calls = [_call_text(call) for call in message.get("tool_calls") or ()]
    plain = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**plain, "content": "\n".join([text, *calls] if text else calls)}


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    arguments = function.get("arguments") or "{}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text}}}\n</tool_call>'
