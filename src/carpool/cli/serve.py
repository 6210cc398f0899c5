"""`carpool serve`: a key per person and a fair queue, in front of an engine."""

import json
import logging
import signal
import socket
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.database import DatabaseOption
from carpool.errors import CarpoolError

if TYPE_CHECKING:
    from carpool.backends.backend import Backend
    from carpool.backends.supervision import BackendStatus

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class UsageError(CarpoolError):
    """Options that do not go together."""


def serve(
    model: Annotated[
        str, typer.Argument(help="The model to serve; what the engine calls it, or its path.")
    ] = "smollm2-135m",
    backend: Annotated[
        str,
        typer.Option(
            help="embedded, vllm, sglang, llama.cpp or ollama, which are started; or the URL of "
            "an engine that runs, like vllm+http://127.0.0.1:8100."
        ),
    ] = "embedded",
    backend_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="ARG", help="One more argument for the engine; can be repeated."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8000,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name that clients may use; can be repeated."),
    ] = None,
    database: DatabaseOption = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let everybody in without a key; loopback only.")
    ] = False,
    max_waiting: Annotated[int, typer.Option(min=1, help="Most requests that wait.")] = 512,
    max_wait: Annotated[
        float, typer.Option(min=0.1, help="Seconds that a request waits for a seat at the most.")
    ] = 120.0,
    first_byte_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds for the engine's first byte.", show_default="none"),
    ] = None,
    idle_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds between two pieces.", show_default="none"),
    ] = None,
    total_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds for a whole answer.", show_default="none"),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that SIGTERM leaves to what is running.")
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the engine is ready.")
    ] = False,
) -> None:
    """Give MODEL to people with keys (`carpool keys add`), a fair share each."""
    if no_auth and host not in _LOOPBACK:
        raise UsageError(
            f"--no-auth with --host {host} would let everybody on the network in; give people "
            "keys (carpool keys add NAME), or listen on 127.0.0.1"
        )
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))

    from carpool.backends.supervisor import Supervisor
    from carpool.gateway.gateway import Gateway, GatewayOptions
    from carpool.gateway.serve import serve
    from carpool.gateway.upstream_errors import Timeouts
    from carpool.gateway.waiting_room import QueueLimits
    from carpool.serving.http_server import run
    from carpool.serving.listen import Address, listening
    from carpool.store.database import open_database

    with (
        listening(Address(host, port)) as listener,
        tempfile.TemporaryDirectory(prefix="carpool-") as run_folder,
    ):
        store = open_database(database)
        engine = _backend(backend, model, Path(run_folder), backend_arg or [])
        options = GatewayOptions(
            needs_keys=not no_auth,
            queue=QueueLimits(max_requests=max_waiting, max_wait_s=max_wait),
            timeouts=Timeouts(
                first_byte=first_byte_timeout, idle=idle_timeout, total=total_timeout
            ),
            journal_folder=_journal_folder(store.url),
        )
        announce = partial(_announce, model, listener, as_json, tls_cert is not None)
        run(
            serve(
                lambda: Gateway(model, alias or [], Supervisor(engine), store, options),
                listener,
                drain_s=drain_timeout,
                on_ready=announce,
                tls_cert=tls_cert,
                tls_key=tls_key,
            )
        )


def _backend(backend: str, model: str, run_folder: Path, arguments: list[str]) -> "Backend":
    from carpool.backends.create import attach, is_url, launch

    if is_url(backend):
        return attach("engine", backend, model=None)
    return launch(backend, "engine", model, run_folder=run_folder, options=arguments)


def _journal_folder(database_url: str) -> Path:
    """Usage on its way to the database: beside its file or, where there is none, where data
    belongs. Each database has one of its own, so that none gets the rows of another."""
    import hashlib
    import os

    from sqlalchemy import make_url

    from carpool.store.database import default_database_url

    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        file = Path(url.database or "").expanduser().absolute()
        return file.with_name(f"{file.name}.journal")
    default_file = Path(make_url(default_database_url(os.environ)).database or "")
    name = hashlib.sha256(database_url.encode()).hexdigest()[:12]
    return default_file.with_name(f"{name}.journal")


def _announce(
    model: str, listener: socket.socket, as_json: bool, is_tls: bool, status: "BackendStatus"
) -> None:
    from carpool.serving.listen import base_url

    url = f"{base_url(listener)}/v1"
    if is_tls:
        url = url.replace("http://", "https://", 1)
    capacity = status.capacity
    if as_json:
        fields = {
            "base_url": url,
            "model": model,
            "max_num_seqs": capacity.max_num_seqs if capacity else None,
            "kv_tokens": capacity.kv_tokens if capacity else None,
        }
        typer.echo(json.dumps(fields))
        return
    seats = f": {capacity.max_num_seqs} seats, {capacity.kv_tokens:,} KV tokens" if capacity else ""
    typer.echo(f"{model} is ready at {url}{seats}")
    if sys.stdout.isatty():
        typer.echo("Give somebody a key: carpool keys add NAME. Ctrl-C stops it.")
