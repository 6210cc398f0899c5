"""A request that is not served, in words its sender can act on."""

import json
import math

from carpool.gateway.outcome import HTTP_STATUS, Outcome

RETRIED = (429, 503)
"""Statuses that say when to try again."""
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}


def whole_seconds(seconds: float) -> int:
    """As Retry-After takes them: rounded up, and at least 1."""
    return max(1, math.ceil(seconds))


class Refusal(Exception):
    """Raised by any part of the gateway before the first byte of an answer.

    `message` names the limit, the value and what to do. `limit` is the limit's name for
    programs. `retry_after_s` is rounded up to whole seconds; every 429 and 503 has one.
    """

    def __init__(
        self,
        outcome: Outcome,
        message: str,
        *,
        limit: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.message = message
        self.limit = limit
        self.status = HTTP_STATUS[outcome]
        self.retry_after_s: int | None = None
        if self.status in RETRIED:
            self.retry_after_s = whole_seconds(retry_after_s or 1)

    def headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            headers.append((b"retry-after", str(self.retry_after_s).encode()))
        return headers

    def body(self) -> bytes:
        """OpenAI's error shape; `code` is the outcome."""
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.limit,
            "code": self.outcome.value,
        }
        return json.dumps({"error": error}).encode()
