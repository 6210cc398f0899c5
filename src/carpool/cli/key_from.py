"""The --key-env option: a key is never an argument, where everybody on the machine sees it."""

import os
from typing import Annotated

import typer

from carpool.errors import CarpoolError

KeyEnvOption = Annotated[
    str | None,
    typer.Option(
        metavar="VARIABLE", help="Environment variable with the key that the endpoint wants."
    ),
]


class KeyNotSet(CarpoolError):
    """The environment variable that is to hold a key does not."""


def key_from(variable: str | None) -> str | None:
    """Raises KeyNotSet."""
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise KeyNotSet(f"the environment variable {variable} is to hold a key, and is not set")
    return key
