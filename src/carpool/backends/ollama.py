"""Ollama: `ollama serve`, https://docs.ollama.com/faq and https://docs.ollama.com/api/ps"""

import re
from collections.abc import Sequence

from carpool.backends.backend import BackendKind, Command, Quirks
from carpool.backends.capacity_facts import CapacityFacts, json_object, positive_int
from carpool.backends.http_backend import HttpBackend
from carpool.backends.local_port import local_address

NUM_PARALLEL = 4
CONTEXT_LENGTH = 4096

_PARALLEL = re.compile(r"\bOLLAMA_NUM_PARALLEL:(\d+)")
_CONTEXT = re.compile(r"\bOLLAMA_CONTEXT_LENGTH:(\d+)")


class OllamaBackend(HttpBackend):
    """Ollama. It loads a model with the first request for it, so it is ready as soon as it
    answers; how many run at once is a setting that only its log tells (1 unless set)."""

    kind = BackendKind.OLLAMA
    quirks = Quirks(health_path="/api/version", max_tokens_name="max_tokens")
    defaults = CapacityFacts(max_num_seqs=1, max_model_len=CONTEXT_LENGTH)

    def facts_of_line(self, line: str) -> CapacityFacts:
        return parse_log_line(line)

    async def read_facts(self) -> CapacityFacts:
        return parse_ps(await self._get_body("/api/ps"), self.model)


def launch_ollama(
    name: str,
    model: str,
    *,
    max_num_seqs: int = NUM_PARALLEL,
    max_model_len: int = CONTEXT_LENGTH,
    options: Sequence[str] = (),
    executable: str = "ollama",
) -> OllamaBackend:
    """`ollama serve` on a port of its own; `model` must have been pulled. Every one of the
    `max_num_seqs` has `max_model_len` tokens, and the model stays in memory."""
    address = local_address()
    env = {
        "OLLAMA_HOST": address.authority,
        "OLLAMA_NUM_PARALLEL": str(max_num_seqs),
        "OLLAMA_CONTEXT_LENGTH": str(max_model_len),
        "OLLAMA_KEEP_ALIVE": "-1",
    }
    command = Command((executable, "serve", *options), env)
    known = CapacityFacts(max_num_seqs, max_num_seqs * max_model_len, max_model_len)
    return OllamaBackend(name, address, model=model, known=known, command=command)


def parse_log_line(line: str) -> CapacityFacts:
    """The line `msg="server config" env="map[...]"`, where 0 stands for what Ollama picks."""
    if 'msg="server config"' not in line:
        return CapacityFacts()
    parallel, context = _PARALLEL.search(line), _CONTEXT.search(line)
    return _of_slots(
        positive_int(parallel[1]) if parallel else None,
        positive_int(context[1]) if context else None,
    )


def parse_ps(text: str | bytes, model: str | None) -> CapacityFacts:
    """GET /api/ps: what one sequence of `model` (None: the first) has, once it is loaded."""
    models = json_object(text).get("models")
    for entry in models if isinstance(models, list) else []:
        if isinstance(entry, dict) and (model is None or _is_model(entry, model)):
            return CapacityFacts(max_model_len=positive_int(entry.get("context_length")))
    return CapacityFacts()


def _is_model(entry: dict[str, object], model: str) -> bool:
    return {entry.get("name"), entry.get("model")} & {model, f"{model}:latest"} != set()


def _of_slots(num_slots: int | None, length: int | None) -> CapacityFacts:
    kv_tokens = num_slots * length if num_slots and length else None
    return CapacityFacts(num_slots, kv_tokens, length)
