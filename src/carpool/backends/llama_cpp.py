"""llama.cpp's server: `llama-server`,
https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md"""

import re
from collections.abc import Sequence
from pathlib import Path

from carpool.backends.backend import BackendKind, Command, Quirks
from carpool.backends.capacity_facts import CapacityFacts, json_object, positive_int
from carpool.backends.http_backend import HttpBackend
from carpool.backends.local_port import local_address, new_api_key

MAX_NUM_SEQS = 8
MAX_MODEL_LEN = 4096

_SLOTS = re.compile(r"n_slots = (\d+), n_ctx_slot = (\d+)(?:, kv_unified = '(true|false)')?")


class LlamaCppBackend(HttpBackend):
    """llama-server. A sequence has a slot, and a slot a fixed share of the context, unless
    the slots share it (`--kv-unified`), which only its log says."""

    kind = BackendKind.LLAMA_CPP
    quirks = Quirks(health_path="/health")
    defaults = CapacityFacts(max_num_seqs=1, max_model_len=MAX_MODEL_LEN)

    def facts_of_line(self, line: str) -> CapacityFacts:
        return parse_log_line(line)

    async def read_facts(self) -> CapacityFacts:
        props = parse_props(await self._get_body("/props"))
        return props.or_else(parse_slots(await self._get_body("/slots")))


def launch_llama_cpp(
    name: str,
    model: str,
    *,
    max_num_seqs: int = MAX_NUM_SEQS,
    max_model_len: int = MAX_MODEL_LEN,
    options: Sequence[str] = (),
    executable: str = "llama-server",
) -> LlamaCppBackend:
    """`llama-server` with a slot of `max_model_len` tokens for each of `max_num_seqs`, on a
    port of its own, with a key of its own. `model` is a GGUF file or a name on the hub."""
    address, api_key = local_address(), new_api_key()
    argv = [executable, "--model" if Path(model).is_file() else "--hf-repo", model]
    argv += ["--host", address.host, "--port", str(address.port)]
    argv += ["--parallel", str(max_num_seqs), "--ctx-size", str(max_num_seqs * max_model_len)]
    command = Command((*argv, "--metrics", *options), {"LLAMA_API_KEY": api_key})
    return LlamaCppBackend(name, address, api_key=api_key, command=command)


def parse_log_line(line: str) -> CapacityFacts:
    """The line that says how the slots were made."""
    found = _SLOTS.search(line)
    if found is None:
        return CapacityFacts()
    num_slots, length = positive_int(found[1]), positive_int(found[2])
    return _of_slots(num_slots, length, is_shared=found[3] == "true")


def parse_props(text: str | bytes) -> CapacityFacts:
    """GET /props."""
    props = json_object(text)
    settings = props.get("default_generation_settings")
    length = settings.get("n_ctx") if isinstance(settings, dict) else None
    return _of_slots(positive_int(props.get("total_slots")), positive_int(length))


def parse_slots(text: str | bytes) -> CapacityFacts:
    """GET /slots, a list of them."""
    slots = json_object(b'{"slots": %s}' % (text.encode() if isinstance(text, str) else text))
    lengths = [
        positive_int(slot.get("n_ctx")) for slot in slots.get("slots", []) if isinstance(slot, dict)
    ]
    known = [length for length in lengths if length]
    return _of_slots(len(lengths) or None, min(known) if known else None)


def _of_slots(
    num_slots: int | None, length: int | None, *, is_shared: bool = False
) -> CapacityFacts:
    if num_slots is None or length is None:
        return CapacityFacts(num_slots, None, length)
    return CapacityFacts(num_slots, length if is_shared else num_slots * length, length)
