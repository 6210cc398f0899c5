"""`carpool usage`: who used how much."""

import dataclasses
import json
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.database import DatabaseOption
from carpool.cli.moment import parse_since
from carpool.cli.table import print_table
from carpool.store.group_by import GroupBy

if TYPE_CHECKING:
    from carpool.store.usage_store import UsageTotal

SinceOption = Annotated[
    float | None,
    typer.Option(
        parser=parse_since,
        metavar="7d|DATE",
        help="Count what started since then; a date begins at 00:00 UTC.",
        show_default="the beginning",
    ),
]
UntilOption = Annotated[
    float | None,
    typer.Option(
        parser=parse_since,
        metavar="1d|DATE",
        help="Count what started before then.",
        show_default="now",
    ),
]


def usage(
    by: Annotated[GroupBy, typer.Option(help="What to sum up by; days are UTC.")] = GroupBy.PERSON,
    since: SinceOption = None,
    until: UntilOption = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    database: DatabaseOption = None,
) -> None:
    """Sum up requests and tokens by person, key, model or day."""
    from carpool.store.database import open_database
    from carpool.store.usage_csv import usage_csv
    from carpool.store.usage_store import UsageStore

    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other")
    with closing(open_database(database)) as opened:
        totals = UsageStore(opened).totals(by, since, until)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(total) for total in totals]))
    elif as_csv:
        typer.echo(usage_csv(totals), nl=False)
    else:
        print_totals(by, totals)


def print_totals(by: GroupBy, totals: "Iterable[UsageTotal]") -> None:
    columns = ("requests", "failed", "prompt", "cached", "output", "queue ms", "ttft ms")
    names = ("key", "label") if by is GroupBy.KEY else (by.value,)
    print_table((*names, *columns), [_cells(by, total) for total in totals], len(columns))


def _cells(by: GroupBy, total: "UsageTotal") -> list[str]:
    names = [total.group_id, total.name] if by is GroupBy.KEY else [total.name]
    counts = [
        total.num_requests,
        total.num_failed,
        total.prompt_tokens,
        total.cached_tokens,
        total.output_tokens,
    ]
    means = [total.mean_queue_ms, total.mean_ttft_ms]
    return [
        *names,
        *(f"{count:,}" for count in counts),
        *("-" if mean is None else f"{mean:,.0f}" for mean in means),
    ]
