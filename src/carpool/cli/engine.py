"""`carpool engine`: the embedded engine alone, for one model and many requests at once."""

import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from carpool.cli.size import parse_size
from carpool.engine.options import Dtype, EngineOptions, KVCacheDtype, Weights

if TYPE_CHECKING:
    from carpool.engine.engine import AsyncEngine
    from carpool.engine.loader import LoadedModel


def engine(
    model: Annotated[
        str,
        typer.Argument(help="What `carpool pull` takes: a catalogue name, a path or a hub id."),
    ] = "smollm2-135m",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for any free one.")
    ] = 8000,
    uds: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Listen on this Unix socket instead.")
    ] = None,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name that clients may use; can be repeated."),
    ] = None,
    kv_cache_memory: Annotated[
        int | None,
        typer.Option(
            parser=parse_size,
            metavar="SIZE",
            help="Memory for the KV cache, like 4GiB.",
            show_default="30% of the free memory",
        ),
    ] = None,
    kv_cache_dtype: Annotated[
        KVCacheDtype, typer.Option(help="auto: bf16 where the processor has it, else f32.")
    ] = KVCacheDtype.AUTO,
    dtype: Annotated[
        Dtype, typer.Option(help="What is computed in. auto: bf16 where there is one, else f32.")
    ] = Dtype.AUTO,
    weights: Annotated[
        Weights, typer.Option(help="auto: whichever is faster here; measured once.")
    ] = Weights.AUTO,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads for the model; 0 leaves it to OpenVINO.")
    ] = 0,
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=2, help="Longest prompt and output, in tokens.", show_default="the model's"
        ),
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Most sequences in a step.")] = 64,
    max_num_batched_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in a step.")
    ] = 256,
    max_waiting: Annotated[
        int, typer.Option(min=0, help="Most requests that wait; the next gets a 503.")
    ] = 1024,
    prefix_cache: Annotated[
        bool, typer.Option(help="Keep the KV blocks of prompts for those that begin alike.")
    ] = True,
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds that SIGTERM leaves to what is running.")
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object when the model is ready.")
    ] = False,
) -> None:
    """Serve MODEL over an OpenAI-compatible HTTP API with the embedded engine alone: no keys."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    options = EngineOptions(
        weights=weights,
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_memory=kv_cache_memory,
        num_threads=threads,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_waiting=max_waiting,
        enable_prefix_cache=prefix_cache,
    )
    from carpool.serving.listen import Address, listening

    # Until the server has handlers of its own, a SIGTERM leaves in good order, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with listening(Address(host, port, uds)) as listener:
        engine = _prepare(model, served_model_name or [], options)
        announce = _announce_json if as_json else _announce
        was_loading = _run(
            engine, listener, drain_timeout, partial(announce, engine, listener, uds)
        )
    if was_loading:
        # The loading thread is inside OpenVINO, which must not be torn down under it.
        sys.stdout.flush()
        os._exit(0)


def _prepare(name: str, names: list[str], options: EngineOptions) -> "AsyncEngine":
    """Have the model's files ready, and an engine that can load them."""
    from carpool.cli.progress import progress_bar
    from carpool.engine.engine import AsyncEngine
    from carpool.engine.executor import ExecutorConfig
    from carpool.engine.loader import load_model
    from carpool.engine.resolve import default_cache, resolve
    from carpool.engine.weights import prepare_weights

    cache = default_cache()
    with progress_bar() as report:
        model = resolve(name, cache, report)
        config = ExecutorConfig.from_options(options)
        path = prepare_weights(cache, model, options.weights, config, report)
    model_name, *aliases = [*names, model.name]
    return AsyncEngine(
        partial(load_model, model, path, options),
        model_name,
        model_aliases=tuple(aliases),
        max_waiting=options.max_waiting,
    )


def _run(
    engine: "AsyncEngine",
    listener: socket.socket,
    drain_s: float,
    announce: "Callable[[LoadedModel], None]",
) -> bool:
    """Serve until a signal; whether that came while the model was loading."""
    from carpool.engine.client import EngineState
    from carpool.engine.serve import serve as serve_engine
    from carpool.serving.http_server import run

    run(serve_engine(engine, listener, drain_s=drain_s, on_ready=announce))
    return engine.state is EngineState.LOADING


def _announce_json(
    engine: "AsyncEngine", listener: socket.socket, uds: Path | None, loaded: "LoadedModel"
) -> None:
    from carpool.serving.listen import base_url

    config = loaded.scheduler_config
    fields = {
        "base_url": f"{base_url(listener)}/v1",
        "uds": None if uds is None else str(uds),
        "model": engine.model_name,
        "max_num_seqs": config.max_num_seqs,
        "kv_tokens": config.kv_tokens,
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "kv_bytes_per_token": loaded.executor.bytes_per_block // config.block_size,
        "weights_path": str(loaded.executor.path),
        "weight_bytes": loaded.executor.weight_bytes,
        "dtype": loaded.executor.config.dtype,
        "kv_cache_dtype": loaded.executor.config.kv_cache_dtype,
    }
    typer.echo(json.dumps(fields))


def _announce(
    engine: "AsyncEngine", listener: socket.socket, uds: Path | None, loaded: "LoadedModel"
) -> None:
    from carpool.serving.listen import base_url

    url, config = f"{base_url(listener)}/v1", loaded.scheduler_config
    option = "" if uds is None else f"--unix-socket {uds} "
    typer.echo(
        f"{engine.model_name} is ready at {url}{f' on {uds}' if uds else ''}: "
        f"{config.max_num_seqs} sequences at once, {config.kv_tokens:,} KV tokens, "
        f"{config.max_model_len:,} tokens of context"
    )
    if not sys.stdout.isatty():
        return
    typer.echo(f"""
Ask it with curl:

  curl {option}{url}/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{engine.model_name}", "max_tokens": 100, "temperature": 0,
         "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

or from Python (pip install openai):

  from openai import OpenAI
  client = OpenAI(base_url="{url}", api_key="none")
  answer = client.chat.completions.create(
      model="{engine.model_name}", max_tokens=100, temperature=0,
      messages=[{{"role": "user", "content": "What is the capital of France?"}}])
  print(answer.choices[0].message.content)

Ctrl-C stops it.""")
