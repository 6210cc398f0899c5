"""Options of the commands that ask a running gateway's admin API: where it is, and its key."""

import os
from pathlib import Path
from typing import Annotated

import typer

from carpool.errors import CarpoolError

KEY_VARIABLE = "CARPOOL_ADMIN_KEY"
ADMIN_URL = "http://127.0.0.1:8001"

AdminUrl = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="CARPOOL_ADMIN_URL",
        help="The admin API, as carpool serve --admin-port says it.",
        show_envvar=True,
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File with the admin key.", show_default=f"${KEY_VARIABLE}"),
]


class AdminKeyMissing(CarpoolError):
    """Neither a file nor the environment has the admin key."""


def admin_key_from(file: Path | None) -> str:
    """From `file` or, without one, the environment. Raises AdminKeyMissing."""
    if file is None:
        key = os.environ.get(KEY_VARIABLE, "")
        where = f"the environment variable {KEY_VARIABLE}"
    else:
        where = str(file)
        try:
            key = file.read_text("ascii")
        except UnicodeDecodeError:
            raise AdminKeyMissing(f"{file} holds no admin key") from None
        except OSError as error:
            raise AdminKeyMissing(f"cannot read {file}: {error.strerror or error}") from None
    key = key.strip()
    if not key.isascii() or not key.isprintable() or not key:
        raise AdminKeyMissing(
            f"{where} holds no admin key; make one (carpool admin-key) and put it there, or into "
            f"a file for --admin-key-file"
        )
    return key
