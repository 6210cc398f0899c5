"""A JSON object that remembers where its fields stand, so that a few can be changed in place.

Everything that is not changed keeps its bytes: spacing, order, number and escape spelling.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from carpool.errors import CarpoolError

_Matcher = Callable[[str, int], re.Match[str] | None]

_space: _Matcher = re.compile(r"[ \t\n\r]*").match
_opening: _Matcher = re.compile(r"[ \t\n\r]*\{[ \t\n\r]*").match
_colon: _Matcher = re.compile(r"[ \t\n\r]*:[ \t\n\r]*").match
_comma: _Matcher = re.compile(r",[ \t\n\r]*").match


def _no_number(name: str) -> None:
    raise _NoNumberError(name)


class _NoNumberError(ValueError):
    """NaN or an infinity, which JSON does not have."""


# What `raw_decode` calls; it raises StopIteration where no value begins.
_decode = json.JSONDecoder(parse_constant=_no_number).scan_once  # type: ignore[attr-defined]
_dumps = json.JSONEncoder(separators=(",", ":")).encode


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
        except StopIteration as error:
            where = f"at character {error.value}"
            raise JsonObjectError(f"the body is not valid JSON: no value {where}") from None
        except json.JSONDecodeError as error:
            raise JsonObjectError(f"the body is not valid JSON: {error}") from None
        except _NoNumberError as error:
            raise JsonObjectError(f"the body is not valid JSON: it holds {error}") from None
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
        if renames or not self.members.keys().isdisjoint(removals):
            return self._rebuilt(values, renames, {*removals, *renames.values()})
        edits, added = [], []
        for name, value in values.items():
            member = self.members.get(name)
            if member is None:
                added.append(f"{_dumps(name)}:{_dumps(value)}")
            elif self.fields[name] != value:
                edits.append((member.value_start, member.value_end, _dumps(value)))
        if not edits and not added:
            return self.raw
        return self._edited(edits, added)

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

    def _edited(self, edits: list[tuple[int, int, str]], added: list[str]) -> bytes:
        """The bytes with spans replaced and members added in front."""
        text = self.text
        at, _ = self._inside()
        parts = [text[:at], ",".join(added)]
        if added and self.members:
            parts.append(",")
        for start, end, new in sorted(edits):
            parts += (text[at:start], new)
            at = end
        parts.append(text[at:])
        return "".join(parts).encode()

    def _rebuilt(
        self, values: Mapping[str, Any], renames: Mapping[str, str], removals: Collection[str]
    ) -> bytes:
        """The bytes put together again, member by member."""
        left = dict(values)
        kept = [
            self._member(name, renames.get(name), left)
            for name in self.members
            if name in renames or name not in removals
        ]
        added = [f"{_dumps(name)}:{_dumps(value)}" for name, value in left.items()]
        start, end = self._inside()
        return f"{self.text[:start]}{','.join(added + kept)}{self.text[end:]}".encode()

    def _member(self, name: str, new_name: str | None, values: dict[str, Any]) -> str:
        """The text of a member; takes its new value, if any, out of `values`."""
        text, member = self.text, self.members[name]
        key = text[member.key_start : member.key_end] if new_name is None else _dumps(new_name)
        value = text[member.value_start : member.value_end]
        if (new_name or name) in values:
            value = _dumps(values.pop(new_name or name))
        before = text[member.start : member.key_start]
        between = text[member.key_end : member.value_start]
        return f"{before}{key}{between}{value}{text[member.value_end : member.end]}"

    def _inside(self) -> tuple[int, int]:
        """From after the opening brace to the closing one."""
        return self.text.index("{") + 1, self.text.rindex("}")


def _read(text: str) -> tuple[dict[str, Any], dict[str, Member]]:
    fields: dict[str, Any] = {}
    members: dict[str, Member] = {}
    at = _end(_opening, text, 0, "'{'")
    if text.startswith("}", at):
        return _at_end(text, at + 1, fields, members)
    start = text.index("{") + 1
    while True:
        if not text.startswith('"', at):
            raise json.JSONDecodeError("expecting a field's name in double quotes", text, at)
        name, key_end = _decode(text, at)
        colon = _colon(text, key_end)
        if colon is None:
            raise json.JSONDecodeError("expecting ':'", text, key_end)
        value_start = colon.end()
        value, value_end = _decode(text, value_start)
        end = (
            value_end
            if text.startswith((",", "}"), value_end)
            else _end(_space, text, value_end, "")
        )
        if name in fields:
            raise json.JSONDecodeError(f"the field {name!r} is given twice", text, at)
        fields[name] = value
        members[name] = Member(start, at, key_end, value_start, value_end, end)
        if text.startswith("}", end):
            return _at_end(text, end + 1, fields, members)
        at = _end(_comma, text, end, "',' or '}'")
        start = end + 1


def _end(match: _Matcher, text: str, at: int, what: str) -> int:
    found = match(text, at)
    if found is None:
        raise json.JSONDecodeError(f"expecting {what}", text, at)
    return found.end()


def _at_end(
    text: str, at: int, fields: dict[str, Any], members: dict[str, Member]
) -> tuple[dict[str, Any], dict[str, Member]]:
    at = _end(_space, text, at, "")
    if at != len(text):
        raise json.JSONDecodeError("extra data after the object", text, at)
    return fields, members
