"""SGLang: `python -m sglang.launch_server`, https://docs.sglang.ai/"""

import re
import sys
from collections.abc import Sequence

from carpool.backends.backend import BackendKind, Command, PriorityOrder, Quirks
from carpool.backends.capacity_facts import CapacityFacts, json_object, positive_int
from carpool.backends.http_backend import HttpBackend
from carpool.backends.local_port import local_address

_FIELDS = {
    "max_num_seqs": re.compile(r"\bmax_running_requests=(\d+)"),
    "kv_tokens": re.compile(r"\bmax_total_num_tokens=(\d+)"),
    "max_model_len": re.compile(r"\bcontext_len=(\d+)"),
}


class SGLangBackend(HttpBackend):
    """SGLang. Its /health generates a token unless told otherwise, so probes ask for the
    list of models. `priority` sends high values first (if it runs with
    `--enable-priority-scheduling`)."""

    kind = BackendKind.SGLANG
    quirks = Quirks(health_path="/v1/models", priority_order=PriorityOrder.HIGH_FIRST)
    defaults = CapacityFacts(max_num_seqs=128, max_model_len=4096)

    def facts_of_line(self, line: str) -> CapacityFacts:
        return parse_log_line(line)

    async def read_facts(self) -> CapacityFacts:
        info = parse_server_info(await self._get_body("/server_info", "/get_server_info"))
        return info.or_else(await super().read_facts())


def launch_sglang(
    name: str,
    model: str,
    *,
    max_num_seqs: int | None = None,
    max_model_len: int | None = None,
    options: Sequence[str] = (),
    executable: str = sys.executable,
) -> SGLangBackend:
    """The server on a port of its own; `executable` is the Python that has SGLang, `options`
    are more of the server's arguments."""
    address = local_address()
    argv = [executable, "-m", "sglang.launch_server", "--model-path", model]
    argv += ["--host", address.host, "--port", str(address.port)]
    if max_num_seqs is not None:
        argv += ["--max-running-requests", str(max_num_seqs)]
    if max_model_len is not None:
        argv += ["--context-length", str(max_model_len)]
    env = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "false"}
    return SGLangBackend(name, address, command=Command((*argv, *options), env))


def parse_log_line(line: str) -> CapacityFacts:
    """The line that sums up the start ("max_total_num_tokens=..., ..."); what it says of
    running requests is what state caches left of the number that was asked for."""
    if _FIELDS["kv_tokens"].search(line) is None:
        return CapacityFacts()
    found = {name: pattern.search(line) for name, pattern in _FIELDS.items()}
    return CapacityFacts(**{name: positive_int(hit[1]) for name, hit in found.items() if hit})


def parse_server_info(text: str | bytes) -> CapacityFacts:
    """GET /server_info, which older versions call /get_server_info. Figures there are of one
    data-parallel rank; `max_running_requests` is only what was asked for."""
    info = json_object(text)
    states = info.get("internal_states")
    state = states[0] if isinstance(states, list) and states else {}
    state = state if isinstance(state, dict) else {}
    num_ranks = positive_int(info.get("dp_size")) or 1
    per_rank = positive_int(state.get("effective_max_running_requests_per_dp"))
    kv_tokens = positive_int(info.get("max_total_num_tokens"))
    return CapacityFacts(
        per_rank * num_ranks if per_rank else positive_int(info.get("max_running_requests")),
        kv_tokens * num_ranks if kv_tokens else None,
        positive_int(info.get("context_length")),
    )
