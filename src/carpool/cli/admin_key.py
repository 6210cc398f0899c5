"""`carpool admin-key`: the key of the admin API."""

import json
from contextlib import closing

import typer

from carpool.cli.database import DatabaseOption
from carpool.cli.key_store import JsonOption


def admin_key(as_json: JsonOption = False, database: DatabaseOption = None) -> None:
    """Make a key for the admin API and print it, this once; the one before stops working."""
    from carpool.store.admin_key import AdminKeyStore
    from carpool.store.database import open_database
    from carpool.store.key_view import iso_time

    with closing(open_database(database)) as opened:
        new = AdminKeyStore(opened).renew()
    if as_json:
        created_at = iso_time(new.key.created_at)
        typer.echo(
            json.dumps({"key": new.text, "key_id": new.key.key_id, "created_at": created_at})
        )
        return
    typer.echo("The key of the admin API, shown this once; the one before has ended:", err=True)
    typer.echo(new.text)
