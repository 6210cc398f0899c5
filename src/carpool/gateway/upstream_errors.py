"""What can go wrong between the gateway and an engine, and the timers that say when it has."""

from dataclasses import dataclass
from enum import StrEnum

from carpool.errors import CarpoolError


class How(StrEnum):
    """How a forwarded request ended. COMPLETED includes an engine's 4xx; its 5xx, and an error
    event within a stream, are UPSTREAM_ERROR."""

    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_CUT = "upstream_cut"
    UPSTREAM_MALFORMED = "upstream_malformed"
    CONNECT_FAILED = "connect_failed"
    FIRST_BYTE_TIMEOUT = "first_byte_timeout"
    IDLE_TIMEOUT = "idle_timeout"
    TOTAL_TIMEOUT = "total_timeout"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Each in seconds, each on its own; None: that timer is off.

    connect: until the connection stands. first_byte: from the request until the first byte of
    the answer's body. idle: between two pieces of the body, while we are reading. total: from
    the request to the answer's end.
    """

    connect: float | None = 5.0
    first_byte: float | None = None
    idle: float | None = None
    total: float | None = None


class UpstreamError(CarpoolError):
    """The engine gave no whole answer; `how` says in which way, the message for people."""

    how = How.UPSTREAM_ERROR


class OutOfService(UpstreamError):
    """It answered, with a 502, 503 or 504: somebody else may do better. `retry_after` is its
    header of that name, as it was sent."""

    def __init__(self, status: int, retry_after: bytes | None) -> None:
        super().__init__(f"the engine answered with {status}")
        self.status = status
        self.retry_after = retry_after


class ConnectFailed(UpstreamError):
    """No connection: refused, unreachable, bad TLS, or late."""

    how = How.CONNECT_FAILED


class FirstByteLate(UpstreamError):
    """Connected and asked, but not a byte of the answer's body in time."""

    how = How.FIRST_BYTE_TIMEOUT


class IdleTooLong(UpstreamError):
    """The answer began and then nothing came for too long."""

    how = How.IDLE_TIMEOUT


class TotalTooLong(UpstreamError):
    """The whole answer took too long."""

    how = How.TOTAL_TIMEOUT


class CutOff(UpstreamError):
    """The connection ended before the answer did."""

    how = How.UPSTREAM_CUT


class Malformed(UpstreamError):
    """What came is not HTTP, or beyond the bounds."""

    how = How.UPSTREAM_MALFORMED


class Stopped(UpstreamError):
    """The gateway itself ended the answer: a revoked key, the drain limit."""

    how = How.STOPPED
