"""Where a secret is read from: an environment variable or a file, never the configuration."""

import os
from collections.abc import Mapping
from pathlib import Path

from carpool.errors import CarpoolError


class AlertConfigError(CarpoolError):
    """Settings of alerts that cannot be used."""


def read_secret(
    owner: str,
    field: str,
    env: str | None,
    file: Path | None,
    environ: Mapping[str, str] = os.environ,
) -> str:
    """Of exactly one of the two: `field`_env and `field`_file of `owner`. Raises
    AlertConfigError, with nothing of the secret in it."""
    if (env is None) == (file is None):
        raise AlertConfigError(f"{owner}: give {field}_env or {field}_file, one of them")
    if env is not None:
        value = environ.get(env, "")
        where = f"the environment variable {env}"
    else:
        where = str(file)
        try:
            value = Path(file or "").expanduser().read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise AlertConfigError(f"{owner}: cannot read {where}: {reason}") from None
    value = value.strip()
    if not value or not value.isprintable():
        trouble = "is empty" if not value else "holds more than one line, or what is no text"
        raise AlertConfigError(f"{owner}: {where}, its {field}, {trouble}")
    return value
