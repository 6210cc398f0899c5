"""The --database option, the same for every verb."""

from typing import Annotated

import typer

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="URL",
        envvar="CARPOOL_DATABASE",
        help="sqlite:////path/to/carpool.db or postgresql://user:password@host/name.",
        show_default="carpool.db in $CARPOOL_HOME or ~/.local/share/carpool",
    ),
]
