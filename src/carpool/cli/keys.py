"""`carpool keys`: who may use the machine, for what, and how much."""

import dataclasses
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
from carpool.cli.moment import parse_expiry
from carpool.cli.table import print_table
from carpool.cli.usage import SinceOption, print_totals
from carpool.store.group_by import GroupBy
from carpool.store.lane import Lane

if TYPE_CHECKING:
    from carpool.store.key import Key
    from carpool.store.key_store import NewKey
    from carpool.store.person import Person

app = typer.Typer(
    help="People's keys: add, list, show, limit, rotate, revoke.", no_args_is_help=True
)

KeyArgument = Annotated[
    str,
    typer.Argument(metavar="KEY", help="The key's id, or the name of a person with one key."),
]


@app.callback()
def keys() -> None:
    """People's keys: add, list, show, limit, rotate, revoke."""


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose key; a new name makes a new person.")],
    label: Annotated[
        str | None,
        typer.Option(help="What the key is for, for your lists.", show_default="the name"),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Models the key may use.", show_default="all"),
    ] = None,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    max_in_flight: MaxInFlightOption = None,
    max_prompt_tokens: MaxPromptTokensOption = None,
    max_output_tokens: MaxOutputTokensOption = None,
    daily_tokens: DailyTokensOption = None,
    monthly_tokens: MonthlyTokensOption = None,
    expires: Annotated[
        float | None,
        typer.Option(
            parser=parse_expiry,
            metavar="30d|DATE",
            help="Refused from then on; a date begins at 00:00 UTC.",
            show_default="never",
        ),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            help="The person's share under load, also of older keys: 2 gets twice the tokens of 1.",
            show_default="1, or as it is",
        ),
    ] = None,
    lane: Annotated[
        Lane, typer.Option(help="batch: only use what would be idle.")
    ] = Lane.INTERACTIVE,
    private: Annotated[
        bool, typer.Option("--private", help="Never send requests to a hosted fallback.")
    ] = False,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
) -> None:
    """Make a key for NAME and print it, this once."""
    from carpool.store.limits import Limits

    limits = Limits(
        rpm=rpm,
        tpm=tpm,
        max_in_flight=max_in_flight,
        max_prompt_tokens=max_prompt_tokens,
        max_output_tokens=max_output_tokens,
        daily_tokens=daily_tokens,
        monthly_tokens=monthly_tokens,
    )
    with opened_store(database) as store:
        person, new = store.add_key_for(
            name,
            label,
            weight=weight,
            models=None if models is None else models.split(","),
            limits=limits,
            lane=lane,
            is_private=private,
            expires_at=expires,
        )
    _print_new(new, person, as_json)


@app.command(name="list")
def list_keys(as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """List all keys, oldest first."""
    from carpool.store.key_view import key_view

    with opened_store(database) as store:
        snapshot = store.snapshot()
    now = time.time()
    views = [key_view(key, snapshot.people[key.person_id], now) for key in snapshot.keys]
    if as_json:
        typer.echo(json.dumps(views))
        return
    columns = ("key", "person", "label", "state", "lane", "models", "created", "expires")
    print_table(columns, map(_list_cells, views))


@app.command()
def show(key: KeyArgument, as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """Show one key: limits, models, times; never the secret."""
    with opened_store(database) as store:
        found = store.find_key(key)
        person = store.get_person(found.person_id)
    _print_key(found, person, as_json)


@app.command()
def limit(
    key: KeyArgument,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    max_in_flight: MaxInFlightOption = None,
    max_prompt_tokens: MaxPromptTokensOption = None,
    max_output_tokens: MaxOutputTokensOption = None,
    daily_tokens: DailyTokensOption = None,
    monthly_tokens: MonthlyTokensOption = None,
    none: NoneOption = None,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
) -> None:
    """Change a key's limits while it is in use; what is not named stays as it is."""
    changes = limit_changes(
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
    if not changes:
        raise typer.BadParameter("name a limit to change, like --rpm 60 or --none rpm")
    with opened_store(database) as store:
        changed = store.change_key(store.find_key(key).key_id, limits=changes)
        person = store.get_person(changed.person_id)
    _print_key(changed, person, as_json)


@app.command()
def rotate(key: KeyArgument, as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """Give a key a new secret and print it, this once; the old one stops working."""
    with opened_store(database) as store:
        new = store.rotate(store.find_key(key).key_id)
        person = store.get_person(new.key.person_id)
    _print_new(new, person, as_json)


@app.command()
def revoke(key: KeyArgument, as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """End a key for good. Gateways refuse it within a second."""
    with opened_store(database) as store:
        revoked = store.revoke(store.find_key(key).key_id)
        person = store.get_person(revoked.person_id)
    if as_json:
        _print_key(revoked, person, as_json)
    else:
        typer.echo(f"revoked {revoked.key_id} ({revoked.name}) of {person.name}")


@app.command()
def record(
    key: KeyArgument,
    days: Annotated[
        int, typer.Option(min=1, max=30, help="For how many days requests are recorded.")
    ] = 7,
    consent: Annotated[
        bool,
        typer.Option("--consent", help="Whoever uses the key knows of it and has agreed."),
    ] = False,
    off: Annotated[
        bool, typer.Option("--off", help="End it, and delete what was recorded.")
    ] = False,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
) -> None:
    """Keep the text of a key's requests for a while, for `carpool eval record`.

    Of each request what was asked is kept, for 30 days and of the last 1,000 at the most; answers
    are not. Without this nothing of any text is kept.
    """
    from carpool.store.recorded_requests import RecordedRequestStore

    if consent is off:
        raise typer.BadParameter(
            "give --consent if whoever uses the key has agreed to it, or --off to end it"
        )
    with opened_store(database) as store:
        key_id = store.find_key(key).key_id
        until = None if off else time.time() + days * 86_400
        changed = store.change_key(key_id, record_until=until)
        num_forgotten = RecordedRequestStore(store.database).forget(key_id) if off else 0
        person = store.get_person(changed.person_id)
    if off and not as_json:
        typer.echo(f"Nothing of {key_id} is recorded any more; {num_forgotten} requests deleted.")
        return
    _print_key(changed, person, as_json)


@app.command()
def usage(
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="One key; else all.")] = None,
    since: SinceOption = None,
    as_json: JsonOption = False,
    database: DatabaseOption = None,
) -> None:
    """Sum up what keys used; of one key, also what is left of its budgets."""
    from carpool.store.limits import Limits
    from carpool.store.usage_store import UsageStore, day_start, month_start

    with opened_store(database) as store:
        ledger, now = UsageStore(store.database), time.time()
        found = None if key is None else store.find_key(key)
        key_id = None if found is None else found.key_id
        totals = ledger.totals(GroupBy.KEY, since, key_id=key_id)
        today = ledger.tokens_since(day_start(now), key_id=key_id)
        month = ledger.tokens_since(month_start(now), key_id=key_id)
    if as_json:
        rows = [dataclasses.asdict(total) for total in totals]
        typer.echo(json.dumps({"keys": rows, "tokens_today": today, "tokens_this_month": month}))
        return
    print_totals(GroupBy.KEY, totals)
    limits = Limits() if found is None else found.limits
    typer.echo(f"tokens today: {_of(today, limits.daily_tokens)}")
    typer.echo(f"tokens this month: {_of(month, limits.monthly_tokens)}")


def _print_new(new: "NewKey", person: "Person", as_json: bool) -> None:
    """The key alone on stdout, for scripts; what to know about it on stderr."""
    from carpool.store.key_view import key_view

    if as_json:
        typer.echo(json.dumps({"key": new.text} | key_view(new.key, person, time.time())))
        return
    typer.echo(f"The key of {person.name}, shown this once:", err=True)
    typer.echo(new.text)


def _print_key(key: "Key", person: "Person", as_json: bool) -> None:
    from carpool.store.key_view import key_view

    view = key_view(key, person, time.time())
    if as_json:
        typer.echo(json.dumps(view))
        return
    print_view(view)


def _list_cells(view: dict[str, Any]) -> list[str]:
    models = ", ".join(view["models"]) if view["models"] is not None else "all"
    days = [view[name][:10] if view[name] else "never" for name in ("created_at", "expires_at")]
    names = ("key_id", "person", "label", "state", "lane")
    return [*(view[name] for name in names), models, *days]


def _of(num_tokens: int, budget: int | None) -> str:
    return f"{num_tokens:,}" if budget is None else f"{num_tokens:,} of {budget:,}"
