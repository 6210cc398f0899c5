"""The command line: one file per verb, and the one place where errors become exit codes."""

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from carpool import __version__
from carpool.cli import (
    admin_key,
    bench,
    engine,
    eval,
    keys,
    lab,
    models,
    people,
    plan,
    pull,
    report,
    serve,
    upgrade,
    usage,
    verify,
    watch,
)
from carpool.errors import CarpoolError

EXIT_CODES = "Exit codes: 0 done, 1 a bug, 2 something to mend (one line says what), 130 Ctrl-C."


class CarpoolGroup(TyperGroup):
    """Prints a `CarpoolError` as one line on stderr and exits with code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CarpoolError as error:
            typer.echo(f"carpool: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("carpool: stopped", err=True)
            raise typer.Exit(130) from None


app = typer.Typer(
    name="carpool",
    cls=CarpoolGroup,
    help="Share one open language model among a team, on your own hardware.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # In a log, and as an engine's last word to `carpool serve`, an error is a line and no box.
    rich_markup_mode="rich" if sys.stderr.isatty() else None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"carpool {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


app.command(epilog=EXIT_CODES)(plan.plan)
app.command(epilog=EXIT_CODES)(pull.pull)
app.command(epilog=EXIT_CODES)(serve.serve)
app.command(epilog=EXIT_CODES)(engine.engine)
app.command(epilog=upgrade.EXIT_CODES)(upgrade.upgrade)
app.command(epilog=EXIT_CODES)(usage.usage)
app.command(epilog=EXIT_CODES)(report.report)
app.command(epilog=bench.EXIT_CODES)(bench.bench)
app.command(epilog=verify.EXIT_CODES)(verify.verify)
app.command(name="admin-key", epilog=EXIT_CODES)(admin_key.admin_key)
app.add_typer(keys.app, name="keys", epilog=EXIT_CODES)
app.add_typer(eval.app, name="eval", epilog=eval.EXIT_CODES)
app.add_typer(lab.app, name="lab", epilog=EXIT_CODES)
app.add_typer(models.app, name="models", epilog=EXIT_CODES)
app.add_typer(people.app, name="people", epilog=EXIT_CODES)
app.add_typer(watch.app, name="watch", epilog=EXIT_CODES)
