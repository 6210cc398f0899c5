"""One step while it is being put together."""

from carpool.scheduling.outputs import ScheduledRequest
from carpool.scheduling.request import Request


class StepPlan:
    """A token budget, the decodes and the prefill chunks that spend it.

    `headroom` is the number of blocks to leave free for running requests that may grow.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.headroom = 0
        self.decodes: list[ScheduledRequest] = []
        self.preempted_request_ids: list[str] = []
        self._chunks: dict[Request, int] = {}

    def __contains__(self, request: Request) -> bool:
        """Whether it has a chunk in this step."""
        return request in self._chunks

    def add_decode(self, request: Request) -> None:
        self.decodes.append(ScheduledRequest(request, request.num_computed_tokens, 1, True))
        self.budget -= 1

    def add_chunk(self, request: Request, limit: int | None = None) -> int:
        """Give `request` more of the budget, at most `limit` tokens; return where its
        computed tokens will end."""
        planned = self._chunks.get(request, 0)
        start = request.num_computed_tokens + planned
        num_tokens = min(request.num_tokens - start, self.budget)
        if limit is not None:
            num_tokens = min(num_tokens, limit)
        if num_tokens > 0:
            self._chunks[request] = planned + num_tokens
            self.budget -= num_tokens
        return start + num_tokens

    def chunked_requests(self) -> list[Request]:
        return list(self._chunks)

    def scheduled(self) -> tuple[ScheduledRequest, ...]:
        """Decodes, then prefills, each in the order in which they were added."""
        chunks = [
            ScheduledRequest(
                request,
                request.num_computed_tokens,
                num_tokens,
                request.num_computed_tokens + num_tokens == request.num_tokens,
            )
            for request, num_tokens in self._chunks.items()
        ]
        return (*self.decodes, *chunks)
