"""Any other OpenAI-compatible server: one in the house that is no kind of ours, or a host."""

from carpool.backends.backend import BackendKind, BackendState, Quirks
from carpool.backends.capacity_facts import CapacityFacts, parse_models
from carpool.backends.http_backend import HttpBackend
from carpool.backends.http_get import Answer


class RemoteBackend(HttpBackend):
    """Only its list of models is asked, and not often. It says nothing of what it carries:
    the seats are as many as a person set, and its memory is its own affair."""

    kind = BackendKind.REMOTE
    quirks = Quirks(health_path="/v1/models", probe_interval_s=5.0)
    defaults = CapacityFacts(max_num_seqs=64, max_model_len=32768)

    async def read_facts(self) -> CapacityFacts:
        _, facts = parse_models(await self._get_body("/v1/models"), self.model)
        return facts

    def state_of_answer(self, answer: Answer) -> BackendState:
        """One that answers is there, even if it has no list of models or we ask too often."""
        if answer.status < 400 or answer.status in (404, 405, 429):
            return BackendState.READY
        raise self._no_use(self.quirks.health_path, answer)
