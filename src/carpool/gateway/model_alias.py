"""Puts the name a client asked for back where the engine wrote its own."""

import json
import re
from functools import lru_cache

from carpool.gateway.json_object import JsonObject, JsonObjectError
from carpool.gateway.sse_events import data_of

_find_model = re.compile(rb'"model"[ \t\n\r]*:[ \t\n\r]*"((?:[^"\\]|\\.)*)"').search
# Where events that wrap an object have the model's name: Anthropic's and the responses API.
_WRAPPERS = ("message", "response")


class AliasWriter:
    """Replaces the value of the field `model` in the bodies and events of one answer."""

    __slots__ = ("_alias", "_new", "_old", "real_name")

    def __init__(self, alias: str) -> None:
        self.real_name: str | None = None
        """What the engine called the model, once it has."""
        self._alias = alias
        self._old: bytes | None = None  # the field as this engine spells it
        self._new = b""

    def rewrite(self, data: bytes) -> bytes:
        """A body or event with the alias in it; the same bytes if it names no model."""
        mentions = data.count(b'"model"')
        if mentions == 0:
            return data
        # A quote within a JSON string is escaped: one mention is one field or a plain string.
        if mentions == 1:
            if self._old is not None and self._old in data:
                return data.replace(self._old, self._new, 1)
            return self._learn(data)
        return self._rewrite_json(data)

    def _learn(self, data: bytes) -> bytes:
        found = _find_model(data)
        if found is None:
            return data
        try:
            self._note(_unquoted(found[1]))
        except ValueError:  # no JSON, so no field
            return data
        start, end = found.start(1) - 1, found.end(1) + 1
        self._old = found[0]
        self._new = data[found.start() : start] + _quoted(self._alias)
        return data[: found.start()] + self._new + data[end:]

    def _rewrite_json(self, data: bytes) -> bytes:
        """The careful way, for what mentions a model more than once."""
        text = data if data.lstrip().startswith(b"{") else data_of(data)
        try:
            new = self._rewrite_object(JsonObject.parse(text))
        except JsonObjectError:
            return data
        return data.replace(text, new, 1)

    def _rewrite_object(self, item: JsonObject) -> bytes:
        if isinstance(item.fields.get("model"), str):
            self._note(item.fields["model"])
            return item.changed({"model": self._alias})
        for name in _WRAPPERS:
            inner = item.nested(name)
            if inner is not None:
                return item.with_nested(name, self._rewrite_object(inner))
        return item.raw

    def _note(self, name: str) -> None:
        if self.real_name is None:
            self.real_name = name


# The same few names, all the time.


@lru_cache(maxsize=256)
def _quoted(name: str) -> bytes:
    return json.dumps(name).encode()


@lru_cache(maxsize=256)
def _unquoted(name: bytes) -> str:
    text: str = json.loads(b'"' + name + b'"')
    return text
