"""`carpool watch`: the live picture in the terminal, and rules and dashboards for others."""

import asyncio
import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.admin_options import ADMIN_URL, AdminKeyFile, AdminUrl, admin_key_from

if TYPE_CHECKING:
    from rich.console import Console

    from carpool.watch.terminal.watcher import Watcher

PIPE_WIDTH, PIPE_HEIGHT = 100, 1000
HELP = "Watch a gateway live: seats, queue, people, alerts."

app = typer.Typer(help=HELP)


@app.callback(invoke_without_command=True, help=HELP)
def watch(
    context: typer.Context,
    url: AdminUrl = ADMIN_URL,
    admin_key_file: AdminKeyFile = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the picture once, as without a terminal.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with all that is known.")
    ] = False,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from carpool.watch.terminal.admin_client import AdminClient, admin_address
    from carpool.watch.terminal.watcher import Watcher

    client = AdminClient(admin_address(url), admin_key_from(admin_key_file))
    watcher = Watcher(client)
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)
    if as_json:
        asyncio.run(_print_json(watcher))
    elif once or not console.is_terminal or console.is_dumb_terminal:
        asyncio.run(_print_once(watcher, console, url))
    else:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
        asyncio.run(_show(watcher, console, url))


class Export(StrEnum):
    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"


@app.command()
def export(
    what: Annotated[Export, typer.Argument(help="Rules that alert, or a dashboard to import.")],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take [alerts.rules] of this configuration."),
    ] = None,
) -> None:
    """Print the alerts as rules for Prometheus, or a dashboard for Grafana."""
    from carpool.gateway.config_file import read_config
    from carpool.watch.alert_rules import rules_with
    from carpool.watch.grafana import dashboard
    from carpool.watch.prometheus_rules import rules_file

    changes = {} if config is None else read_config(config).alerts.rules
    text = dashboard() if what is Export.GRAFANA else rules_file(rules_with(changes))
    typer.echo(text, nl=False)


async def _print_json(watcher: "Watcher") -> None:
    await _refresh_once(watcher)
    typer.echo(json.dumps(watcher.answers | {"trouble": watcher.trouble}))


async def _print_once(watcher: "Watcher", console: "Console", url: str) -> None:
    from carpool.watch.terminal.picture import Picture
    from carpool.watch.terminal.reading import read_view

    await _refresh_once(watcher)
    view = read_view(watcher.answers)
    for line in Picture(url).lines(view, console.width, PIPE_HEIGHT, watcher.trouble):
        console.print(line, no_wrap=True, crop=False)


async def _refresh_once(watcher: "Watcher") -> None:
    """Raises AdminAway where there is nothing to show."""
    from carpool.watch.terminal.admin_client import AdminAway

    await watcher.refresh()
    if "now" not in watcher.answers:
        raise AdminAway(f"the gateway is {(watcher.trouble or '').removesuffix('; trying again')}")


async def _show(watcher: "Watcher", console: "Console", url: str) -> None:
    """Until Ctrl-C."""
    from rich.console import Group
    from rich.live import Live

    from carpool.watch.terminal.picture import Picture
    from carpool.watch.terminal.reading import read_view
    from carpool.watch.terminal.watcher import EVERY_S

    picture = Picture(url)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            await watcher.refresh()
            view = read_view(watcher.answers) if "now" in watcher.answers else None
            lines = picture.lines(view, *console.size, watcher.trouble)
            live.update(Group(*lines), refresh=True)
            await asyncio.sleep(EVERY_S)
