"""`carpool people`: who shares the machine, how much of it is theirs, and what they may use."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from carpool.cli.database import DatabaseOption
from carpool.cli.key_store import JsonOption, opened_store, print_view
from carpool.cli.limit_options import (
    DailyTokensOption,
    MaxInFlightOption,
    MaxOutputTokensOption,
    MaxPromptTokensOption,
    MonthlyTokensOption,
    NoneOption,
    RpmOption,
    TpmOption,
    limit_changes,
)
from carpool.cli.table import print_table
from carpool.store.limits import LIMIT_NAMES

if TYPE_CHECKING:
    from carpool.store.key_store import KeyStore, PersonChanges
    from carpool.store.person import Person

app = typer.Typer(help="People: list, show, limit, remove.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The person's name or id.")]


@app.callback()
def people() -> None:
    """People: list, show, limit, remove."""


@app.command(name="list")
def list_people(as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """List everybody, by name."""
    from carpool.store.person_view import person_view

    with opened_store(database) as store:
        snapshot = store.snapshot()
    views = [person_view(person, snapshot.keys, time.time()) for person in snapshot.people.values()]
    if as_json:
        typer.echo(json.dumps(views))
        return
    print_table(("person", "id", "weight", "keys", "limits"), map(_cells, views))


@app.command()
def show(name: NameArgument, as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """Show one person: weight, limits, keys that work."""
    with opened_store(database) as store:
        _print(store, store.person_called(name), as_json)


@app.command()
def limit(
    name: NameArgument,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    max_in_flight: MaxInFlightOption = None,
    max_prompt_tokens: MaxPromptTokensOption = None,
    max_output_tokens: MaxOutputTokensOption = None,
    daily_tokens: DailyTokensOption = None,
    monthly_tokens: MonthlyTokensOption = None,
    none: NoneOption = None,
    weight: Annotated[
        float | None,
        typer.Option(
            help="Their share under load: 2 gets twice the tokens of 1.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
) -> None:
    """Change what NAME may use with all keys together; what is not named stays as it is."""
    limits = limit_changes(
        none,
        {
            "rpm": rpm,
            "tpm": tpm,
            "max_in_flight": max_in_flight,
            "max_prompt_tokens": max_prompt_tokens,
            "max_output_tokens": max_output_tokens,
            "daily_tokens": daily_tokens,
            "monthly_tokens": monthly_tokens,
        },
    )
    if not limits and weight is None:
        raise typer.BadParameter("name a limit to change, or --weight")
    changes: PersonChanges = {"limits": limits}
    if weight is not None:
        changes["weight"] = weight
    with opened_store(database) as store:
        person = store.change_person(store.person_called(name).person_id, **changes)
        _print(store, person, as_json)


@app.command()
def remove(
    name: NameArgument,
    revoke_keys: Annotated[
        bool, typer.Option("--revoke-keys", help="Even if they have keys that work.")
    ] = False,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
) -> None:
    """Forget NAME and their keys, for good. What they used stays in the ledger, by their id."""
    from carpool.store.person_view import person_view

    with opened_store(database) as store:
        person_id = store.person_called(name).person_id
        person = store.remove_person(person_id, with_keys=revoke_keys)
    if as_json:
        typer.echo(json.dumps(person_view(person, (), time.time())))
    else:
        typer.echo(f"removed {person.name} ({person.person_id})")


def _print(store: "KeyStore", person: "Person", as_json: bool) -> None:
    from carpool.store.person_view import person_view

    view = person_view(person, store.list_keys(), time.time())
    if as_json:
        typer.echo(json.dumps(view))
    else:
        print_view(view)


def _cells(view: dict[str, Any]) -> list[str]:
    limits = [f"{name} {view[name]:,}" for name in LIMIT_NAMES if view[name] is not None]
    return [
        view["name"],
        view["person_id"],
        f"{view['weight']:g}",
        str(len(view["keys"])),
        ", ".join(limits) or "-",
    ]
