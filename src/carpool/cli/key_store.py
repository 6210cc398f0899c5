"""People and keys, as the verbs open and print them."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from carpool.store.key_store import KeyStore

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def opened_store(url: str | None) -> "Iterator[KeyStore]":
    from carpool.store.database import open_database
    from carpool.store.key_store import KeyStore

    with closing(open_database(url)) as database:
        yield KeyStore(database)


def print_view(view: Mapping[str, Any]) -> None:
    for name, value in view.items():
        typer.echo(f"{name:18} {_shown(value)}")


def _shown(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case list():
            return ", ".join(value) or "-"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
