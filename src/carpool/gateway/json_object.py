"""A JSON object that remembers where its fields stand, so that a few can be changed in place.

Everything that is not changed keeps its bytes: spacing, order, number and escape spelling.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from carpool.errors import CarpoolError

_skip_space = re.compile(r"[ \t\n\r]*").match
_decode = json.JSONDecoder().raw_decode


class JsonObjectError(CarpoolError):
    """The bytes are not one JSON object in UTF-8, or it names a field twice."""


class Member(NamedTuple):
    """Where a field stands in the text: all of it between the commas, its key, its value."""

    start: int
    key_start: int
    key_end: int
    value_start: int
    value_end: int
    end: int


@dataclass(frozen=True, slots=True)
class JsonObject:
    """`fields` is the parsed object; `raw` its bytes."""

    raw: bytes
    text: str
    fields: dict[str, Any]
    members: dict[str, Member]

    @classmethod
    def parse(cls, raw: bytes) -> "JsonObject":
        """Raises JsonObjectError.

        A field named twice is refused: the engine might read the other one.
        """
        try:
            text = raw.decode()
            fields, members = _read(text)
        except UnicodeDecodeError:
            raise JsonObjectError("the body is not UTF-8; send JSON in UTF-8") from None
        except json.JSONDecodeError as error:
            raise JsonObjectError(f"the body is not valid JSON: {error}") from None
        except ValueError:
            raise JsonObjectError("the body holds a number that is too long to read") from None
        except RecursionError:
            raise JsonObjectError("the body is nested too deeply") from None
        return cls(raw, text, fields, members)

    def changed(
        self,
        values: Mapping[str, Any],
        renames: Mapping[str, str] | None = None,
        removals: Collection[str] = (),
    ) -> bytes:
        """The bytes with these top-level fields set (added in front if missing), renamed, removed.

        A rename onto a field that is there as well replaces that field.
        """
        renames = {old: new for old, new in (renames or {}).items() if old in self.members}
        removals = {*removals, *renames.values()}
        if (
            not renames
            and not removals
            and all(
                name in self.fields and self.fields[name] == value for name, value in values.items()
            )
        ):
            return self.raw
        written = {
            renames.get(name, name)
            for name in self.members
            if name in renames or name not in removals
        }
        added = [
            f"{json.dumps(name)}:{_compact(value)}"
            for name, value in values.items()
            if name not in written
        ]
        kept = self._kept(values, renames, removals)
        start, end = self._inside()
        return f"{self.text[:start]}{','.join((*added, *kept))}{self.text[end:]}".encode()

    def nested(self, name: str) -> "JsonObject | None":
        """The object that is the value of `name`, or None if there is none."""
        if not isinstance(self.fields.get(name), dict):
            return None
        member = self.members[name]
        return JsonObject.parse(self.text[member.value_start : member.value_end].encode())

    def with_nested(self, name: str, raw: bytes) -> bytes:
        """The bytes with `raw` in place of the value of `name`."""
        member = self.members[name]
        return b"".join(
            (
                self.text[: member.value_start].encode(),
                raw,
                self.text[member.value_end :].encode(),
            )
        )

    def _kept(
        self, values: Mapping[str, Any], renames: Mapping[str, str], removals: Collection[str]
    ) -> Iterable[str]:
        text = self.text
        for name, member in self.members.items():
            if name in renames:
                key, name = json.dumps(renames[name]), renames[name]
            elif name in removals:
                continue
            else:
                key = text[member.key_start : member.key_end]
            value = text[member.value_start : member.value_end]
            if name in values:
                value = _compact(values[name])
            yield "".join(
                (
                    text[member.start : member.key_start],
                    key,
                    text[member.key_end : member.value_start],
                    value,
                    text[member.value_end : member.end],
                )
            )

    def _inside(self) -> tuple[int, int]:
        """From after the opening brace to the closing one."""
        return self.text.index("{") + 1, self.text.rindex("}")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _space_end(text: str, at: int) -> int:
    match = _skip_space(text, at)
    return match.end() if match else at


def _read(text: str) -> tuple[dict[str, Any], dict[str, Member]]:
    fields: dict[str, Any] = {}
    members: dict[str, Member] = {}
    start = _expect(text, _space_end(text, 0), "{")
    at = _space_end(text, start)
    if text.startswith("}", at):
        return _at_end(text, at + 1, fields, members)
    while True:
        _expect(text, at, '"')
        name, key_end = _decode(text, at)
        value_start = _space_end(text, _expect(text, _space_end(text, key_end), ":"))
        value, value_end = _decode(text, value_start)
        end = _space_end(text, value_end)
        if name in fields:
            raise json.JSONDecodeError(f"the field {name!r} is given twice", text, at)
        fields[name] = value
        members[name] = Member(start, at, key_end, value_start, value_end, end)
        if text.startswith("}", end):
            return _at_end(text, end + 1, fields, members)
        start = _expect(text, end, ",")
        at = _space_end(text, start)


def _expect(text: str, at: int, character: str) -> int:
    """The position after `character`, which must stand at `at`."""
    if not text.startswith(character, at):
        raise json.JSONDecodeError(f"expecting {character!r}", text, at)
    return at + 1


def _at_end(
    text: str, at: int, fields: dict[str, Any], members: dict[str, Member]
) -> tuple[dict[str, Any], dict[str, Member]]:
    at = _space_end(text, at)
    if at != len(text):
        raise json.JSONDecodeError("extra data after the object", text, at)
    return fields, members
