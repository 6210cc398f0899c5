"""One request, measured."""

from array import array
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Times are seconds of `time.monotonic`, None for what never came.

    `due`: when it was to be sent, which is where its clock starts. `first_token` is the first
    content, reasoning or tool call; `first_answer_token` the first that is no reasoning.
    `asks_for_all`: the answer was to have just `max_tokens`. `token_times` are those of the
    chunks that held any. `error` is None for a whole answer.
    """

    number: int
    due: float
    sent: float
    ended: float
    status: int = 0
    error: str | None = None
    error_text: str = ""
    first_token: float | None = None
    first_answer_token: float | None = None
    last_token: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int = 0
    is_usage_reported: bool = False
    finish_reason: str | None = None
    queue_ms: float | None = None
    max_tokens: int = 0
    asks_for_all: bool = False
    is_stream: bool = True
    token_times: "array[float]" = field(default_factory=lambda: array("d"))

    @property
    def is_ok(self) -> bool:
        return self.error is None

    @property
    def ttft_ms(self) -> float | None:
        return _ms(self.due, self.first_token)

    @property
    def first_answer_ms(self) -> float | None:
        return _ms(self.due, self.first_answer_token)

    @property
    def admitted_ttft_ms(self) -> float | None:
        """Without the time in Carpool's queue."""
        if self.ttft_ms is None or self.queue_ms is None:
            return None
        return max(0.0, self.ttft_ms - self.queue_ms)

    @property
    def e2e_ms(self) -> float | None:
        return _ms(self.due, self.ended) if self.is_ok else None

    @property
    def tpot_ms(self) -> float | None:
        """Mean time per output token after the first: by tokens, which may be several a chunk."""
        if self.last_token is None or self.first_token is None or self.output_tokens < 2:
            return None
        if not self.is_stream or not self.is_ok:
            return None
        return 1e3 * (self.last_token - self.first_token) / (self.output_tokens - 1)

    @property
    def tokens_per_s(self) -> float | None:
        """As the reader of this stream sees it: tokens after the first by their time."""
        tpot_ms = self.tpot_ms
        return 1e3 / tpot_ms if tpot_ms else None

    @property
    def late_ms(self) -> float:
        """How long after it was due it was sent, connecting included."""
        return 1e3 * max(0.0, self.sent - self.due)

    def as_dict(self, since: float) -> dict[str, Any]:
        """Times in milliseconds, `due_ms` from `since`."""
        return {
            "number": self.number,
            "due_ms": 1e3 * (self.due - since),
            "late_ms": self.late_ms,
            "status": self.status,
            "error": self.error,
            "error_text": self.error_text,
            "ttft_ms": self.ttft_ms,
            "first_answer_ms": self.first_answer_ms,
            "tpot_ms": self.tpot_ms,
            "e2e_ms": self.e2e_ms,
            "queue_ms": self.queue_ms,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "is_usage_reported": self.is_usage_reported,
            "num_chunks": len(self.token_times),
            "finish_reason": self.finish_reason,
        }


def _ms(begin: float, end: float | None) -> float | None:
    return None if end is None else 1e3 * (end - begin)
