"""The fields of a config.json, read with errors that name the file, the field and the value."""

from collections.abc import Mapping

from carpool.errors import CarpoolError


class UnknownShape(CarpoolError):
    """A model whose memory cannot be worked out: the message names what is not understood."""


class ConfigFields:
    """Typed access to a config; `where` names its source in errors."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.values = values
        self.where = where

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, *names: str, default: int | None = None) -> int:
        """The first of `names` that is given. Raises `UnknownShape`."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnknownShape(
                    f"{self.where}: {name} is {value!r}; it must be a positive integer"
                )
            return value
        if default is None:
            also = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
            raise UnknownShape(
                f"{self.where}: no field {names[0]}{also}; take the whole config.json of the model"
            )
        return default

    def optional(self, *names: str) -> int | None:
        return self.integer(*names) if any(name in self for name in names) else None

    def count(self, *names: str, default: int = 0) -> int:
        """The first of `names` that is given; it may be 0. Raises `UnknownShape`."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise UnknownShape(f"{self.where}: {name} is {value!r}; it must not be below 0")
            return value
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.values.get(name)
        return default if value is None else bool(value)

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        return value if isinstance(value, str) else None

    def items(self, name: str) -> list[object]:
        """A list; empty where there is none."""
        value = self.values.get(name)
        return value if isinstance(value, list) else []

    def inner(self, name: str) -> "ConfigFields | None":
        value = self.values.get(name)
        return ConfigFields(value, f"{self.where}: {name}") if isinstance(value, dict) else None
