"""Has the models of embedded engines fetched and converted before anything is started."""

import subprocess
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from carpool.gateway.model_config import ModelConfig


def prepare(models: "Iterable[ModelConfig]") -> None:
    """By `carpool pull`, in a process that takes its memory with it when it ends, and whose
    progress and errors people see. Exits as it does if it fails."""
    wanted = dict.fromkeys(
        backend.model or model.name
        for model in models
        for backend in model.backends
        if backend.engine == "embedded"
    )
    for name in wanted:
        command = [sys.executable, "-m", "carpool", "pull", name]
        pulled = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603
        if pulled.returncode:
            raise typer.Exit(pulled.returncode if pulled.returncode > 0 else 1)
    if wanted and sys.stderr.isatty():
        typer.echo("Loading; the first time on a machine takes half a minute more.", err=True)
