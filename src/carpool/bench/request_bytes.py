"""A prompt as the bytes of an HTTP request."""

import json
from typing import Any

from carpool.bench.prompts import Message, Prompt
from carpool.bench.target import Api, Target


class RequestWriter:
    """Writes requests to one target; the head is made once."""

    def __init__(self, target: Target, temperature: float | None = None) -> None:
        address = target.address
        fields = {
            "host": address.authority,
            "accept": "text/event-stream",
            "content-type": "application/json",
            "user-agent": "carpool-bench",
            **target.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._head = f"POST {address.base_path}{target.api.path} HTTP/1.1\r\n{lines}".encode()
        self._target = target
        self._temperature = temperature

    def write(self, prompt: Prompt) -> bytes:
        body = json.dumps(self.body(prompt), ensure_ascii=False).encode("utf-8", "replace")
        return b"%scontent-length: %d\r\n\r\n%s" % (self._head, len(body), body)

    def body(self, prompt: Prompt) -> dict[str, Any]:
        target = self._target
        body: dict[str, Any] = {"model": target.model}
        if target.api is Api.CHAT:
            body["messages"] = list(prompt.messages)
        else:
            body["prompt"] = "\n".join(map(_text_of, prompt.messages))
        body |= {"max_tokens": prompt.max_tokens, "stream": True}
        if target.takes_stream_options:
            body["stream_options"] = {"include_usage": True}
        if not prompt.ends_at_eos and target.takes_ignore_eos:
            body["ignore_eos"] = True
        if self._temperature is not None:
            body["temperature"] = self._temperature
        return body | dict(prompt.extra)


def _text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text", "") for part in content if isinstance(part, dict))
        return " ".join(texts)
    return str(content or "")
