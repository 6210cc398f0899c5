"""The options that give limits, the same for keys and for people."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from carpool.store.limits import LIMIT_NAMES


def _limit(help: str) -> Any:
    return typer.Option(min=1, help=help, show_default=False)


RpmOption = Annotated[int | None, _limit("Requests a minute.")]
TpmOption = Annotated[int | None, _limit("Prompt and output tokens a minute.")]
MaxInFlightOption = Annotated[int | None, _limit("Requests at once; more wait.")]
MaxPromptTokensOption = Annotated[int | None, _limit("Longest prompt.")]
MaxOutputTokensOption = Annotated[int | None, _limit("Longest output.")]
DailyTokensOption = Annotated[int | None, _limit("Tokens a day (UTC).")]
MonthlyTokensOption = Annotated[int | None, _limit("Tokens a month (UTC).")]
NoneOption = Annotated[
    list[str] | None,
    typer.Option(
        "--none", metavar="FIELD", help="A limit to take away, like rpm; can be repeated."
    ),
]


def limit_changes(none: Iterable[str] | None, given: dict[str, int | None]) -> dict[str, Any]:
    """What to change: the limits `given`, and those that `none` takes away."""
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for field in none or ():
        name = field.removeprefix("--").replace("-", "_")
        if name not in LIMIT_NAMES:
            raise typer.BadParameter(f"--none {field}: there are {', '.join(LIMIT_NAMES)}")
        if name in changes:
            raise typer.BadParameter(f"--none {field}: {name} is given as well")
        changes[name] = None
    return changes
