"""An engine of which there are versions: good ones, and ones with what upgrades break.

In a test: `with serving(Version().reply) as engine`. As a program it takes the arguments that
Carpool gives to vLLM, so that an upgrade can be rehearsed:
python mock_version.py VERSION serve MODEL --host HOST --port PORT ...
"""

import argparse
import asyncio
import hashlib
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))

from mock_engine import (
    DONE,
    MockEngine,
    Reply,
    SeenRequest,
    event,
    json_reply,
    sse_reply,
    usage,
)

CHAT = "/v1/chat/completions"
Json = dict[str, Any]


@dataclass
class Version:
    """`words_per_message` is what its chat template adds to each message. `accuracy`: how often
    it says "Paris" at temperature above 0; at 0 it always does the same."""

    name: str = "1.0"
    model: str = "team-model"
    words_per_message: int = 4
    has_stop: bool = True
    parses_tools: bool = True
    has_tokenize: bool = True
    has_usage: bool = True
    accuracy: float = 0.8
    api_key: str | None = None
    piece_delay: float = 0.0
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def reply(self, request: SeenRequest) -> Reply:
        if self.api_key and request.headers.get("authorization") != f"Bearer {self.api_key}":
            return json_reply({"error": {"message": "Unauthorized"}}, 401)
        if request.method == "GET":
            return self._tell(request.path)
        if request.path == CHAT:
            return self._chat(request.json)
        if request.path == "/tokenize" and self.has_tokenize and "messages" in request.json:
            tokens = self._token_ids(request.json)
            return json_reply({"count": len(tokens), "tokens": tokens, "max_model_len": 4096})
        return json_reply({"error": {"message": f"no {request.path}"}}, 404)

    def _tell(self, path: str) -> Reply:
        if path == "/v1/models":
            data = [{"id": self.model, "object": "model", "max_model_len": 4096}]
            return json_reply({"object": "list", "data": data})
        if path == "/version":
            return json_reply({"version": self.name})
        if path == "/health":
            return json_reply({})
        return json_reply({"error": {"message": f"no {path}"}}, 404)

    def _token_ids(self, body: Json) -> list[int]:
        ids = []
        for message in body["messages"]:
            ids += [1000 + index for index in range(self.words_per_message)]
            words = str(message.get("content") or "").split()
            ids += [int.from_bytes(hashlib.sha256(word.encode()).digest()[:2]) for word in words]
        return ids + [2000] * (20 * len(body.get("tools") or ()))

    def _chat(self, body: Json) -> Reply:
        most = body.get("max_tokens") or 64
        message: Json = {"role": "assistant", "content": ""}
        reason = "stop"
        if body.get("tools") and body.get("tool_choice") != "none" and not _has_tool_result(body):
            name, arguments = body["tools"][0]["function"]["name"], '{"city": "Paris"}'
            if self.parses_tools:
                function = {"name": name, "arguments": arguments}
                message["tool_calls"] = [{"id": "1", "type": "function", "function": function}]
                reason = "tool_calls"
            else:
                message["content"] = f'<tool_call>{{"name": "{name}"}}</tool_call>'
            words = ["call"]
        else:
            words, reason = self._words(body, most)
            message["content"] = "".join(words)
        counts = usage(len(self._token_ids(body)), len(words))
        return self._answer(body, message, words, reason, counts)

    def _words(self, body: Json, most: int) -> tuple[list[str], str]:
        schema = body.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema is not None:
            import json

            return [json.dumps(_instance(schema), ensure_ascii=False)], "stop"
        is_right = not body.get("temperature") or self.dice.random() < self.accuracy
        words = ["It", " is", " Paris" if is_right else " Rome", "."]
        if "Count" in str(body["messages"]):
            words = [f"{number}," for number in range(1000)]
        for index, word in enumerate(words):
            if any(stop in word for stop in body.get("stop") or ()):
                return words[:index], "stop"
        if not self.has_stop:
            words += ["<|im_end|>"] + [" and"] * most
        return words[:most], "stop" if len(words) <= most else "length"

    def _answer(
        self, body: Json, message: Json, words: list[str], reason: str, counts: Json
    ) -> Reply:
        head = {"id": "c", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = {**head, "object": "chat.completion", "choices": [choice]}
            return json_reply(whole | ({"usage": counts} if self.has_usage else {}))
        deltas: list[Json] = [{"role": "assistant", "content": ""}]
        if "tool_calls" in message:
            deltas.append({"tool_calls": [{"index": 0, **message["tool_calls"][0]}]})
        elif message["content"] == "".join(words):
            deltas += [{"content": word} for word in words]
        else:
            deltas.append({"content": message["content"]})
        choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": reason})
        events = [event({**head, "choices": [choice]}) for choice in choices]
        if self.has_usage:
            events.append(event({**head, "choices": [], "usage": counts}))
        return sse_reply([*events, DONE], piece_delay=self.piece_delay)


def _has_tool_result(body: Json) -> bool:
    return any(message["role"] == "tool" for message in body["messages"])


def _instance(schema: Json) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _instance(each) for name, each in schema["properties"].items()}
        case "array":
            return [_instance(schema["items"])] * schema.get("minItems", 1)
        case "boolean":
            return True
        case _:
            return "Paris"


VERSIONS = {
    "1.0": Version("1.0"),
    "1.1": Version("1.1"),
    "2.0-template": Version("2.0-template", words_per_message=5),
    "2.0-stop": Version("2.0-stop", has_stop=False),
    "2.0-tools": Version("2.0-tools", parses_tools=False),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("version")
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--delay", type=float, default=0.0)
    arguments, _ = parser.parse_known_args()
    if arguments.version not in VERSIONS:
        sys.exit(f"there is no version {arguments.version}")
    version = VERSIONS[arguments.version]
    version.model = arguments.model
    version.piece_delay = arguments.delay
    version.api_key = os.environ.get("VLLM_API_KEY")

    async def serve() -> None:
        async with MockEngine(version.reply, port=arguments.port):
            await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    main()
