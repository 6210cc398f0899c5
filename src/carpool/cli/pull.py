"""`carpool pull`: have a model ready on disk."""

import dataclasses
import json
from typing import Annotated

import typer


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|PATH|HF-ID",
            help="A catalogue name, a GGUF file, an OpenVINO or Hugging Face folder, or "
            "org/name[:FILE.gguf] on the hub.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Fetch a model and convert it, so that `carpool serve` starts at once."""
    from carpool.cli.progress import progress_bar
    from carpool.engine.resolve import resolve

    with progress_bar() as report:
        model = resolve(name, report=report)
    if as_json:
        fields = {"name": model.name, "folder": str(model.folder), "source": model.source}
        typer.echo(json.dumps(fields | dataclasses.asdict(model.spec)))
        return
    spec = model.spec
    typer.echo(
        f"{model.name}: {spec.architecture}, {spec.num_parameters / 1e6:,.0f}M parameters, "
        f"{spec.quantization}, context {spec.max_model_len} tokens"
    )
    typer.echo(f"in {model.folder}")
    typer.echo(f"Serve it: carpool serve {name}")
