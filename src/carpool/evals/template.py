"""The chat template of an engine, as far as it can be seen from outside.

What a conversation becomes before the model reads it is told by vLLM's and Carpool's /tokenize
(token ids), and llama-server's /apply-template (text) and /props (the template itself).
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from carpool.evals.endpoint import Endpoint

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
_USER = {"role": "user", "content": "What is the weather in Paris?"}
PROBES: dict[str, dict[str, Any]] = {
    "user": {"messages": [_USER]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, _USER]},
    "turns": {
        "messages": [
            _USER,
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "And tomorrow?"},
        ]
    },
    "tools": {"messages": [_USER], "tools": [_TOOL]},
}
_VERSIONS = (
    ("/version", "version"),
    ("/props", "build_info"),
    ("/server_info", "version"),
    ("/api/version", "version"),
)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A conversation as the model gets it; None where the engine does not say."""

    token_ids: tuple[int, ...] | None = None
    text: str | None = None


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """`rendered` by the name of the probe, `source` the template itself; `version` is what the
    engine says of itself."""

    rendered: dict[str, Rendered] = field(default_factory=dict)
    source: str | None = None
    version: str | None = None
    kind: Literal["template"] = "template"

    @property
    def has_date(self) -> bool:
        """Whether the template writes today's date into prompts."""
        return self.source is not None and "strftime_now" in self.source


async def read_template(endpoint: Endpoint) -> TemplateFacts:
    """What it tells of it; nothing of an endpoint that tells nothing."""
    rendered = {}
    for name, conversation in PROBES.items():
        found = await _render(endpoint, conversation)
        if found is None:
            break
        rendered[name] = found
    props = await endpoint.get_json("/props")
    source = props.get("chat_template") if isinstance(props, dict) else None
    return TemplateFacts(
        rendered, source if isinstance(source, str) else None, await read_version(endpoint)
    )


async def _render(endpoint: Endpoint, conversation: dict[str, Any]) -> Rendered | None:
    request = {"model": endpoint.model, **conversation, "add_generation_prompt": True}
    answer = await endpoint.post_json("/tokenize", request)
    token_ids = answer.get("tokens") if isinstance(answer, dict) else None
    if (
        isinstance(token_ids, list)
        and token_ids
        and all(isinstance(each, int) for each in token_ids)
    ):
        return Rendered(token_ids=tuple(token_ids))
    answer = await endpoint.post_json("/apply-template", conversation)
    text = answer.get("prompt") if isinstance(answer, dict) else None
    return Rendered(text=text) if isinstance(text, str) else None


async def read_version(endpoint: Endpoint) -> str | None:
    """What the engine says it is, if it does."""
    for path, name in _VERSIONS:
        answer = await endpoint.get_json(path)
        version = answer.get(name) if isinstance(answer, dict) else None
        if isinstance(version, str) and version:
            return version[:100]
    return None
