"""Reads a mapping of an eval set field by field, and says of each what is wrong with it."""

from collections.abc import Mapping
from typing import Any

from carpool.errors import CarpoolError

_SHOWN_CHARS = 80


class FieldError(CarpoolError):
    """A field that cannot be used. `field` is its path within a case, like "checks[1].regex"."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.reason = message

    def within(self, path: str) -> "FieldError":
        """The same error, of a field of the field at `path`."""
        joint = "" if self.field.startswith("[") or not self.field else "."
        return FieldError(f"{path}{joint}{self.field}", self.reason)


class Fields:
    """Each method takes a field out and raises FieldError; `end` refuses what is left."""

    def __init__(self, value: Any, what: str) -> None:
        if not isinstance(value, dict):
            raise FieldError("", f"must be {what}, not {shown(value)}")
        odd = next((name for name in value if not isinstance(name, str)), None)
        if odd is not None:
            raise FieldError(str(odd), "is no name of a field; put it in quotes")
        self._left: dict[str, Any] = dict(value)
        self._names = list(value)

    @property
    def left(self) -> Mapping[str, Any]:
        return self._left

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def any(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def required(self, name: str) -> Any:
        if name not in self._left:
            raise FieldError(name, "is missing")
        return self._left.pop(name)

    def text(self, name: str, default: str | None = None) -> str:
        value = self.required(name) if default is None else self._left.pop(name, default)
        if not isinstance(value, str) or (default is None and not value):
            raise FieldError(name, f"must be text, not {shown(value)}")
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._left.get(name) is None else self.text(name)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._left.pop(name, default)
        if not isinstance(value, bool):
            raise FieldError(name, f"must be true or false, not {shown(value)}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.required(name) if default is None else self._left.pop(name, default)
        return as_number(name, value)

    def count(self, name: str, default: int | None = None) -> int | None:
        """A whole number from 0 on."""
        value = self._left.pop(name, default)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise FieldError(name, f"must be a whole number from 0 on, not {shown(value)}")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._left.pop(name, None)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise FieldError(name, f"must be a mapping, not {shown(value)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; one text is a list of one."""
        return as_texts(name, self._left.pop(name, None) or ())

    def end(self) -> None:
        if self._left:
            name = next(iter(self._left))
            raise FieldError(name, "there is no such field")


def as_number(field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == float("inf"):
        raise FieldError(field, f"must be a number, not {shown(value)}")
    return float(value)


def as_texts(field: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        raise FieldError(field, f"must be a text or a list of them, not {shown(value)}")
    return tuple(value)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
