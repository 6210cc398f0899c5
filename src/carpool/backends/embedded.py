"""Carpool's own engine, in a process of its own behind a Unix socket."""

import sys
from collections.abc import Sequence
from pathlib import Path

from carpool.backends.address import Address
from carpool.backends.backend import BackendKind, BackendState, Command, Quirks
from carpool.backends.capacity_facts import CapacityFacts, json_object, positive_int
from carpool.backends.http_backend import HttpBackend
from carpool.backends.http_get import Answer

_STATES = {
    "loading": BackendState.LOADING,
    "ready": BackendState.READY,
    "draining": BackendState.DRAINING,
}


class EmbeddedBackend(HttpBackend):
    """The embedded engine; it says what it carries in a line of JSON once it is ready."""

    kind = BackendKind.EMBEDDED
    quirks = Quirks(health_path="/ready", person_header="x-carpool-person")
    defaults = CapacityFacts(max_num_seqs=64, max_model_len=2048)
    num_program_words = 3  # python -m carpool

    def facts_of_line(self, line: str) -> CapacityFacts:
        return parse_announcement(line)

    def read_line(self, line: str) -> None:
        super().read_line(line)
        self.model = model_of_announcement(line) or self.model

    def state_of_answer(self, answer: Answer) -> BackendState:
        state = _STATES.get(str(json_object(answer.body).get("status")))
        if state is None:
            raise self._no_use(self.quirks.health_path, answer)
        if state is BackendState.READY and self.command() and self._printed.kv_tokens is None:
            # It is ready a moment before it says what it can carry.
            return BackendState.LOADING
        return state


def launch_embedded(
    name: str, model: str, uds: Path, *, options: Sequence[str] = ()
) -> EmbeddedBackend:
    """An engine that serves `model` on the Unix socket `uds`; `options` are more arguments
    of `carpool engine`, like ("--max-num-seqs", "32")."""
    argv = (sys.executable, "-m", "carpool", "engine", model, "--uds", str(uds), "--json", *options)
    return EmbeddedBackend(name, Address(uds=uds), command=Command(argv))


def parse_announcement(line: str) -> CapacityFacts:
    """The line of JSON that the engine prints when it is ready."""
    fields = json_object(line) if line.startswith("{") else {}
    return CapacityFacts(
        positive_int(fields.get("max_num_seqs")),
        positive_int(fields.get("kv_tokens")),
        positive_int(fields.get("max_model_len")),
    )


def model_of_announcement(line: str) -> str | None:
    """The name under which the engine serves its model, from the same line."""
    name = json_object(line).get("model") if line.startswith("{") else None
    return name if isinstance(name, str) else None
