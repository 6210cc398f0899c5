"""`carpool serve`: a key per person and a fair queue, in front of engines."""

import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from carpool.cli.calibrations import CalibrationOption, Measured
from carpool.cli.database import DatabaseOption
from carpool.cli.first_key import first_key
from carpool.cli.prepare import prepare
from carpool.cli.serve_lock import pinned_models
from carpool.cli.serve_plan import announce_plans
from carpool.errors import CarpoolError
from carpool.gateway.logs import LogFormat, set_up_logging
from carpool.gateway.model_config import BackendConfig, FallbackConfig, ModelConfig, WhenDown
from carpool.gateway.redis_link import check_counters
from carpool.gateway.upstream_errors import Timeouts
from carpool.gateway.waiting_room import QueueLimits

if TYPE_CHECKING:
    from carpool.gateway.gateway import Gateway
    from carpool.gateway.parent import Parent
    from carpool.gateway.tracing import Tracing
    from carpool.store.key_store import NewKey

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Urls(NamedTuple):
    """Where people's programs go, and where the admin API is, if it is served."""

    clients: str
    admin: str | None


NewFirstKey = Callable[[], "NewKey | None"]


class UsageError(CarpoolError):
    """Options that do not go together."""


def serve(
    model: Annotated[
        str, typer.Argument(help="The model to serve; what the engine calls it, or its path.")
    ] = "smollm2-135m",
    engine_args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ENGINE_ARGS]", help="More arguments for the engine."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Several models, from a TOML file (docs/serve.md)."),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            help="embedded, vllm, sglang, llama.cpp or ollama, which are started; or the URL of "
            "an engine that runs, like vllm+http://127.0.0.1:8100."
        ),
    ] = "embedded",
    backend_model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What an engine that runs calls the model."),
    ] = None,
    backend_key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the key it wants."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8000,
    uds: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Listen on this Unix socket instead.")
    ] = None,
    alias: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name that clients may use; can be repeated."),
    ] = None,
    database: DatabaseOption = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Let everybody in without a key; loopback only.")
    ] = False,
    when_down: Annotated[
        WhenDown,
        typer.Option(
            help="hold: requests wait until the engine is back; refuse: they are told when to "
            "try again; fallback: they go to --fallback."
        ),
    ] = WhenDown.HOLD,
    fallback: Annotated[
        str | None,
        typer.Option(metavar="URL", help="OpenAI-compatible endpoint with the same weights."),
    ] = None,
    fallback_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name there.")
    ] = None,
    fallback_key_env: Annotated[
        str | None,
        typer.Option(metavar="VARIABLE", help="Environment variable with the key for it."),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Nothing of this model ever leaves for a fallback.")
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
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that serve; more than one need --counters.")
    ] = 1,
    counters: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="CARPOOL_COUNTERS",
            help="Redis or Valkey by which several workers and gateways share limits and seats, "
            "like redis://127.0.0.1:6379/0 (docs/workers.md).",
            show_envvar=True,
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve the dashboard and the admin API here, too (docs/dashboard.md); 0 for any "
            "free port.",
            show_default="not served",
        ),
    ] = None,
    admin_host: Annotated[
        str, typer.Option(help="Address of the admin API; with TLS if it is not loopback.")
    ] = "127.0.0.1",
    lock: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="CARPOOL_LOCK",
            help="Where `carpool upgrade` keeps which version serves (docs/upgrade.md).",
            show_default="carpool.lock beside the database",
        ),
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that SIGTERM leaves to what is running.")
    ] = 30.0,
    log_format: Annotated[
        LogFormat, typer.Option(help="How the log on stderr is written.")
    ] = LogFormat.TEXT,
    calibration: CalibrationOption = True,
    force: Annotated[
        bool,
        typer.Option("--force", help="Start engines even if their models do not seem to fit."),
    ] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log a line per request, without its text.")
    ] = False,
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Collector for OpenTelemetry traces (OTLP over HTTP)."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the models are ready.")
    ] = False,
) -> None:
    """Give MODEL to people with keys (`carpool keys add`), a fair share each."""
    if no_auth and uds is None and host not in _LOOPBACK:
        raise UsageError(
            f"--no-auth with --host {host} would let everybody on the network in; give people "
            "keys (carpool keys add NAME), or listen on 127.0.0.1"
        )
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    if workers > 1 and counters is None:
        raise UsageError(
            f"--workers {workers} needs --counters redis://HOST:PORT/DB: without counters that "
            "they share, each worker would let through what all of them may (docs/workers.md)"
        )
    set_up_logging(log_format, has_access_lines=access_log)
    if counters is not None:
        check_counters(counters)
    tracing = None if otlp_endpoint is None or workers > 1 else _tracing(otlp_endpoint)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))

    alerts = None
    if config is not None:
        from carpool.gateway.config_file import read_config
        from carpool.watch.alert_config import set_up_alerts

        read = read_config(config)
        models, alerts = read.models, set_up_alerts(read.alerts)
    else:
        only = _model_config(
            model,
            _backend_config(backend, model, backend_model, backend_key_env, engine_args or []),
            aliases=tuple(alias or ()),
            when_down=WhenDown.FALLBACK if fallback else when_down,
            fallback=_fallback_config(fallback, fallback_model or model, fallback_key_env),
            is_private=private,
            queue=QueueLimits(max_requests=max_waiting, max_wait_s=max_wait),
            timeouts=Timeouts(
                first_byte=first_byte_timeout, idle=idle_timeout, total=total_timeout
            ),
        )
        models = (only,)

    from carpool.gateway.gateway import Gateway, GatewayOptions
    from carpool.gateway.lock_file import LockFile
    from carpool.gateway.parent import Parent, serve_workers
    from carpool.gateway.serve import serve as serve_gateway
    from carpool.gateway.worker_config import WorkerSettings
    from carpool.serving.http_server import run
    from carpool.serving.listen import Address, listening
    from carpool.store.database import Database, default_database_url, open_database

    configured = tuple(models)
    shown_url = Database(database or default_database_url(os.environ)).url
    lock_file = LockFile(lock or _data_folder(shown_url) / "carpool.lock")
    models = tuple(pinned_models(lock_file, configured))
    admin_address = None if admin_port is None else Address(admin_host, admin_port)
    has_admin_tls = tls_cert is not None and admin_host not in _LOOPBACK
    with (
        listening(Address(host, port, uds)) as listener,
        nullcontext() if admin_address is None else listening(admin_address) as admin_listener,
        tempfile.TemporaryDirectory(prefix="carpool-") as run_folder,
    ):
        is_quiet = log_format is not LogFormat.TEXT
        measured = Measured(database) if calibration else None
        planned = announce_plans(models, force=force, is_quiet=is_quiet, measured=measured)
        models = planned.models
        prepare(models)
        store = open_database(database)
        options = GatewayOptions(
            run_folder=Path(run_folder),
            journal_folder=_journal_folder(store.url),
            needs_keys=not no_auth,
            has_access_log=access_log,
            counters=counters,
            tracing=tracing,
            alerts=alerts,
            plans=planned.plans,
            lock=lock_file if workers == 1 else None,
            configured=configured,
        )
        new_key = partial(first_key, None if no_auth or as_json else store)
        announce = _announce_json if as_json else _announce
        urls = _Urls(
            f"{_url(listener, tls_cert is not None)}/v1",
            None if admin_listener is None else _url(admin_listener, has_admin_tls),
        )
        on_ready = partial(announce, urls, new_key, not no_auth)
        if workers > 1:
            settings = WorkerSettings(
                num_workers=workers,
                models=tuple(models),
                database=database or default_database_url(os.environ),
                counters=counters or "",
                run_folder=options.run_folder,
                journal_folder=options.journal_folder,
                needs_keys=options.needs_keys,
                has_access_log=access_log,
                log_format=log_format,
                otlp_endpoint=otlp_endpoint,
                listener=listener.fileno(),
                tls_cert=tls_cert,
                tls_key=tls_key,
                drain_s=drain_timeout,
            )
            run(
                serve_workers(
                    lambda: Parent(settings, store, alerts, planned.plans),
                    settings,
                    on_ready=on_ready,
                    admin_listener=admin_listener,
                    has_admin_tls=has_admin_tls,
                )
            )
            return
        run(
            serve_gateway(
                lambda: Gateway(models, store, options),
                listener,
                drain_s=drain_timeout,
                on_ready=on_ready,
                tls_cert=tls_cert,
                tls_key=tls_key,
                admin_listener=admin_listener,
                has_admin_tls=has_admin_tls,
            )
        )


def _tracing(endpoint: str) -> "Tracing":
    try:
        from carpool.gateway.tracing import Tracing
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--otlp-endpoint needs OpenTelemetry, and {error.name} is not there: "
            "pip install 'carpool[otel]'"
        ) from None
    return Tracing(endpoint)


def _backend_config(
    backend: str, model: str, backend_model: str | None, key_env: str | None, args: list[str]
) -> "BackendConfig":
    """An engine that runs has a name of its own for the model; one that is started gets MODEL."""
    is_attached = "://" in backend
    return BackendConfig(
        engine=backend,
        model=backend_model if is_attached else model,
        args=tuple(args),
        api_key_env=key_env,
    )


def _fallback_config(url: str | None, model: str, key_env: str | None) -> "FallbackConfig | None":
    return None if url is None else FallbackConfig(url=url, model=model, api_key_env=key_env)


def _model_config(model: str, backend: "BackendConfig", **fields: Any) -> "ModelConfig":
    name = model if "://" in backend.engine else _name_of(model)
    return ModelConfig(name=name, backends=(backend,), **fields)


def _name_of(model: str) -> str:
    """What clients call a model that was given as a path: the last part of it."""
    path = Path(model).expanduser()
    return path.absolute().name.removesuffix(".gguf") if path.exists() else model


def _url(listener: socket.socket, is_tls: bool) -> str:
    from carpool.serving.listen import base_url

    url = base_url(listener)
    return url.replace("http://", "https://", 1) if is_tls else url


def _journal_folder(database_url: str) -> Path:
    """Usage on its way to the database: beside its file or, where there is none, where data
    belongs. Each database has one of its own, so that none gets the rows of another."""
    import hashlib

    from sqlalchemy import make_url

    url = make_url(database_url)
    folder = _data_folder(database_url)
    if url.get_backend_name() == "sqlite":
        return folder / f"{Path(url.database or '').name}.journal"
    name = hashlib.sha256(database_url.encode()).hexdigest()[:12]
    return folder / f"{name}.journal"


def _data_folder(database_url: str) -> Path:
    """That of the database's file; where there is none, that where it would be."""
    from sqlalchemy import make_url

    from carpool.store.database import default_database_url

    url = make_url(database_url)
    if url.get_backend_name() != "sqlite":
        url = make_url(default_database_url(os.environ))
    return Path(url.database or "").expanduser().absolute().parent


def _announce_json(
    urls: _Urls, new_key: NewFirstKey, has_keys: bool, gateway: "Gateway | Parent"
) -> None:
    models = [
        {
            "name": model.name,
            "aliases": list(model.aliases),
            "max_num_seqs": model.gate.admission.capacity.max_num_seqs,
            "kv_tokens": model.gate.admission.capacity.kv_tokens,
        }
        for model in gateway.models
    ]
    typer.echo(json.dumps({"base_url": urls.clients, "admin_url": urls.admin, "models": models}))


def _announce(
    urls: _Urls, new_key: NewFirstKey, has_keys: bool, gateway: "Gateway | Parent"
) -> None:
    key = new_key()
    for model in gateway.models:
        capacity = model.gate.admission.capacity
        typer.echo(
            f"{model.name} is ready at {urls.clients}: {capacity.max_num_seqs} requests at once, "
            f"{capacity.kv_tokens:,} KV tokens"
        )
    if urls.admin is not None:
        typer.echo(f"The dashboard and the admin API are at {urls.admin}; key: carpool admin-key")
    if not has_keys:
        typer.echo("Nobody needs a key (--no-auth).")
    elif key is not None:
        typer.echo(f"\nThe first key, for {key.key.name}; it is shown this once:\n\n  {key.text}")
    if key is not None or sys.stdout.isatty():
        shown = key.text if key else "any" if not has_keys else "YOUR_KEY"
        typer.echo(_examples(urls.clients, shown, gateway.models[0].name))


def _examples(url: str, key: str, model: str) -> str:
    return f"""
Chat in a browser at {url.removesuffix("/v1")}/chat, or ask it with curl:

  curl {url}/chat/completions -H 'authorization: Bearer {key}' \\
    -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "max_tokens": 100, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

or from Python (pip install openai):

  from openai import OpenAI
  client = OpenAI(base_url="{url}", api_key="{key}")
  answer = client.chat.completions.create(
      model="{model}", max_tokens=100, temperature=0,
      messages=[{{"role": "user", "content": "What is the capital of France?"}}])
  print(answer.choices[0].message.content)

A key for everybody else: carpool keys add NAME. Ctrl-C stops it."""
