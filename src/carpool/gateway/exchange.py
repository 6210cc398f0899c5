"""One request, and what becomes of it: filled in as it goes along."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from carpool.gateway.answer import Answer, Forwarded
from carpool.gateway.api_kind import ApiKind
from carpool.gateway.json_object import JsonObject
from carpool.gateway.key_ring import Caller
from carpool.gateway.outcome import Outcome
from carpool.gateway.routing import Replica
from carpool.gateway.served_model import ServedModel
from carpool.gateway.upstream_errors import How

if TYPE_CHECKING:
    from carpool.gateway.tracing import RequestTrace

OUTCOMES = {
    How.COMPLETED: Outcome.COMPLETED,
    How.CLIENT_CANCELLED: Outcome.CLIENT_CANCELLED,
    How.UPSTREAM_ERROR: Outcome.UPSTREAM_ERROR,
    How.UPSTREAM_CUT: Outcome.UPSTREAM_CUT,
    How.UPSTREAM_MALFORMED: Outcome.UPSTREAM_CUT,
    How.CONNECT_FAILED: Outcome.BACKEND_DOWN,
    How.FIRST_BYTE_TIMEOUT: Outcome.FIRST_BYTE_LATE,
    How.IDLE_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    How.TOTAL_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    How.STOPPED: Outcome.DRAINING,
}
_FALLS_BACK = frozenset(
    (
        Outcome.LOADING,
        Outcome.BACKEND_DOWN,
        Outcome.QUEUE_FULL,
        Outcome.QUEUE_TIMEOUT,
        Outcome.FIRST_BYTE_LATE,
        Outcome.UPSTREAM_CUT,
        Outcome.UPSTREAM_ERROR,
    )
)
"""Not what is the client's own affair: its limits, its share of the queue, its key."""


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """See the module. Times are loop time in seconds but for `started_at`, which is since 1970."""

    request_id: str
    kind: ApiKind
    path: str
    headers: Mapping[bytes, bytes]
    raw_headers: list[tuple[bytes, bytes]]
    caller: Caller
    body: JsonObject
    model: ServedModel
    asked_name: str
    arrived_at: float
    started_at: float
    prompt_estimate: int = 0
    queue_s: float = 0.0
    position: int = 0
    replica: Replica | None = None
    answer: Answer | None = None
    """While it is on its way to the client."""
    stopped_by: Outcome | None = None
    first_byte_at: float | None = None
    forwarded: Forwarded | None = None
    outcome: Outcome = Outcome.INTERNAL_ERROR
    status: int = 500
    rate_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    """To the fields of the body, for the engine."""
    trace: "RequestTrace | None" = None

    @property
    def is_private(self) -> bool:
        """Nothing of it may leave for a fallback."""
        return self.model.is_private or self.caller.key.is_private

    @property
    def is_fallback(self) -> bool:
        return self.replica is not None and self.replica is self.model.fallback

    def may_fall_back(self, outcome: Outcome) -> bool:
        """Whether the fallback may answer in place of an engine that ended it like this."""
        return (
            outcome in _FALLS_BACK
            and not self.is_private
            and self.model.fallback is not None
            and not self.is_fallback
        )

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.body.fields

    @property
    def is_stream(self) -> bool:
        return self.fields.get("stream") is True

    def take(self, forwarded: Forwarded) -> None:
        """How it went at the engine."""
        self.forwarded = forwarded
        self.first_byte_at = forwarded.first_byte_at
        self.status = forwarded.status
        self.outcome = OUTCOMES[forwarded.how]
        if forwarded.how is How.STOPPED and self.stopped_by is not None:
            self.outcome = self.stopped_by
        if forwarded.how is How.COMPLETED and forwarded.status >= 400:
            self.outcome = Outcome.BAD_REQUEST
        if self.trace is not None:
            is_whole = forwarded.how is How.COMPLETED
            self.trace.answered(forwarded.status, None if is_whole else forwarded.how.value)

    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"x-request-id", self.request_id.encode("latin-1")),
            (b"x-carpool-queue-ms", b"%d" % round(1e3 * self.queue_s)),
            (b"x-carpool-queue-position", b"%d" % self.position),
            *self.rate_headers,
        ]
        if self.replica is not None and self.is_fallback:
            headers.append((b"x-carpool-fallback", self.replica.name.encode("latin-1")))
        return headers
