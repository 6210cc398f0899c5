"""`carpool models`: what can be served by name, and what it takes on disk."""

import json
from typing import Annotated

import typer

app = typer.Typer(help="List the models that have names here, or remove one from the cache.")


@app.callback(invoke_without_command=True)
def models(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
) -> None:
    """List the catalogue and what is in the cache."""
    if context.invoked_subcommand is not None:
        return
    from carpool.engine.inventory import inventory
    from carpool.engine.resolve import default_cache

    cache = default_cache()
    rows = inventory(cache)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "status", "on disk", "architecture", "parameters", "weights", "context",
                  box=None)  # fmt: skip
    for row in rows:
        table.add_row(
            str(row["name"]),
            str(row["status"]),
            f"{row['bytes_on_disk'] / 1e6:,.0f} MB",
            str(row["architecture"]),
            f"{row['num_parameters'] / 1e6:,.0f}M",
            str(row["quantization"]),
            f"{row['max_model_len']:,}",
        )
    Console().print(table)
    typer.echo(f"cache: {cache.home}")


@app.command()
def rm(
    name: Annotated[str, typer.Argument(help="A name from `carpool models`.")],
) -> None:
    """Delete a model's files from the cache."""
    from carpool.engine.inventory import remove
    from carpool.engine.resolve import default_cache

    freed = remove(default_cache(), name)
    typer.echo(f"removed {name}: {freed / 1e6:,.0f} MB freed")
