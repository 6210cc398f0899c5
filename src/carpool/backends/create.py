"""From what a person says on the command line to a Backend."""

from collections.abc import Callable, Sequence
from pathlib import Path

from carpool.backends.address import Address
from carpool.backends.backend import Backend, BackendKind
from carpool.backends.capacity_facts import CapacityFacts
from carpool.backends.embedded import EmbeddedBackend, launch_embedded
from carpool.backends.http_backend import HttpBackend
from carpool.backends.llama_cpp import LlamaCppBackend, launch_llama_cpp
from carpool.backends.ollama import OllamaBackend, launch_ollama
from carpool.backends.remote import RemoteBackend
from carpool.backends.sglang import SGLangBackend, launch_sglang
from carpool.backends.vllm import VllmBackend, launch_vllm
from carpool.errors import CarpoolError

_KINDS: dict[BackendKind, type[HttpBackend]] = {
    BackendKind.EMBEDDED: EmbeddedBackend,
    BackendKind.VLLM: VllmBackend,
    BackendKind.SGLANG: SGLangBackend,
    BackendKind.LLAMA_CPP: LlamaCppBackend,
    BackendKind.OLLAMA: OllamaBackend,
    BackendKind.REMOTE: RemoteBackend,
}
_LAUNCHERS: dict[BackendKind, Callable[..., HttpBackend]] = {
    BackendKind.VLLM: launch_vllm,
    BackendKind.SGLANG: launch_sglang,
    BackendKind.LLAMA_CPP: launch_llama_cpp,
    BackendKind.OLLAMA: launch_ollama,
}


class UnknownBackend(CarpoolError):
    """A name that is no kind of engine and no address of one."""


def attach(
    name: str,
    url: str,
    *,
    model: str | None = None,
    served_name: str | None = None,
    known: CapacityFacts | None = None,
    api_key: str | None = None,
) -> Backend:
    """An engine that somebody else runs at `url`; "vllm+http://HOST:PORT" says which kind it
    is, so that more can be read from it than from any OpenAI-compatible server. `model` is its
    own name for the model; where that is not known, `served_name` is looked for in its list.

    Raises BackendAddressError and UnknownBackend.
    """
    prefix, plus, rest = url.partition("+")
    is_named = bool(plus) and "/" not in prefix
    kind = _kind(prefix) if is_named else BackendKind.REMOTE
    address = Address.from_url(rest if is_named else url)
    return _KINDS[kind](
        name, address, model=model, served_name=served_name, known=known, api_key=api_key
    )


def launch(
    kind_name: str,
    name: str,
    model: str,
    *,
    run_folder: Path,
    max_num_seqs: int | None = None,
    max_model_len: int | None = None,
    options: Sequence[str] = (),
    program: Sequence[str] = (),
) -> Backend:
    """An engine of our own that serves `model`: "embedded", "vllm", "sglang", "llama.cpp" or
    "ollama". Sizes left out are the engine's own; `options` are more of its arguments, and
    `program` the words that call it, if not the usual ones. The socket of the embedded one is
    made in `run_folder`.

    Raises UnknownBackend.
    """
    kind = _kind(kind_name)
    sizes = {"max_num_seqs": max_num_seqs, "max_model_len": max_model_len}
    given = {field: value for field, value in sizes.items() if value is not None}
    if kind is BackendKind.EMBEDDED:
        flags = [
            part
            for field, value in given.items()
            for part in (f"--{field.replace('_', '-')}", str(value))
        ]
        uds = run_folder / f"{name}.sock"
        embedded = launch_embedded(name, model, uds, options=(*flags, *options))
        embedded.call_by(program)
        return embedded
    if kind is BackendKind.REMOTE:
        raise UnknownBackend("a remote engine is not launched; give its URL")
    launched = _LAUNCHERS[kind](name, model, options=options, **given)
    launched.call_by(program)
    return launched


def is_url(text: str) -> bool:
    """Whether --backend names an address to attach to rather than a kind to launch."""
    return "://" in text


def _kind(name: str) -> BackendKind:
    try:
        return BackendKind(name)
    except ValueError:
        kinds = ", ".join(kind.value for kind in BackendKind if kind is not BackendKind.REMOTE)
        raise UnknownBackend(
            f'"{name[:80]}" is no engine; give {kinds}, or the URL of one that runs'
        ) from None
