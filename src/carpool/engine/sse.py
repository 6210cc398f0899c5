"""Server-sent events with the parts that never change written once."""

import json
from dataclasses import dataclass
from typing import Any

from carpool.engine.errors import ApiError

DONE = b"data: [DONE]\n\n"


def error_event(error: ApiError) -> bytes:
    """What a stream that went wrong ends with, in place of `DONE`."""
    return b"data: " + error.body() + b"\n\n"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The fields at the top of every chunk and body of one answer.

    `chunk_object` is OpenAI's name for a chunk; `created` is in seconds since 1970.
    """

    id: str
    chunk_object: str
    created: int
    model: str

    def as_dict(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def choice_frame(self, index: int, field: str, includes_usage: bool) -> tuple[str, str]:
        """An event up to the value of `field` of choice `index`, and from its end on."""
        head = _compact(self.as_dict(self.chunk_object))[:-1]
        usage = ',"usage":null' if includes_usage else ""
        return (
            f'data: {head},"choices":[{{"index":{index},"{field}":',
            f"}}]{usage}}}\n\n",
        )

    def usage_event(self, usage: dict[str, Any]) -> bytes:
        fields = {**self.as_dict(self.chunk_object), "choices": [], "usage": usage}
        return f"data: {_compact(fields)}\n\n".encode("ascii")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
