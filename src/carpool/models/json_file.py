"""JSON objects in files, read with errors that name the file."""

import json
from pathlib import Path

from carpool.errors import CarpoolError


class BadJSON(CarpoolError):
    """A file that should hold a JSON object is missing or does not."""


def read_json(path: Path, default: dict[str, object] | None = None) -> dict[str, object]:
    """Read an object; a missing file gives `default`, or `BadJSON` when there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if default is not None:
            return default
        raise BadJSON(f"{path}: no such file") from None
    except OSError as error:
        raise BadJSON(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadJSON(f"{path}: not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise BadJSON(f"{path}: must hold a JSON object, holds a {type(value).__name__}")
    return value
