"""Options of `carpool bench` as people write them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.bench.prompts import Lengths

KEY_VARIABLE = "CARPOOL_API_KEY"
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Holds the API key.", show_default=f"${KEY_VARIABLE}, else no key"
    ),
]


def read_key(path: Path | None) -> str | None:
    """From the file, else from the environment; never from the command line, which every user
    of the machine can read. Raises CarpoolError."""
    if path is None:
        return os.environ.get(KEY_VARIABLE) or None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no text"
        raise CarpoolError(f"--api-key-file {path}: cannot be read: {reason}") from None
    if not key:
        raise CarpoolError(f"--api-key-file {path}: is empty; put the key into it")
    return key


def parse_counts(option: str, text: str) -> list[int]:
    """Whole numbers above 0, with commas between."""
    values = [_number(option, part, "a whole number") for part in _parts(text)]
    if any(value != int(value) or value < 1 for value in values):
        raise typer.BadParameter(
            f"{text!r}: give whole numbers from 1, like 1,8,32", param_hint=option
        )
    return [int(value) for value in values]


def parse_rates(option: str, text: str) -> list[float]:
    """Numbers above 0, with commas between."""
    values = [_number(option, part, "a number") for part in _parts(text)]
    if any(not 0 < value < float("inf") for value in values):
        raise typer.BadParameter(f"{text!r}: give numbers above 0, like 0.5,2", param_hint=option)
    return values


def parse_lengths(option: str, text: str) -> "Lengths":
    """N or N:SPREAD."""
    from carpool.bench.prompts import Lengths

    mean, _, spread = text.partition(":")
    return Lengths(
        int(_number(option, mean, "tokens, like 512 or 512:0.5")),
        _number(option, spread, "tokens, like 512 or 512:0.5") if spread else 0.0,
    )


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part.strip()]


def _number(option: str, text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text.strip()!r} is not {what}", param_hint=option) from None
