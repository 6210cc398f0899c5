"""How a request ended: a closed set, which is the metric's label and the ledger's word."""

from enum import StrEnum


class Outcome(StrEnum):
    COMPLETED = "completed"
    CLIENT_CANCELLED = "client_cancelled"
    BAD_REQUEST = "bad_request"
    BAD_KEY = "bad_key"
    MODEL_NOT_ALLOWED = "model_not_allowed"
    MODEL_UNKNOWN = "model_unknown"
    TOO_LARGE = "too_large"
    NOT_JSON = "unsupported_media_type"
    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    TOKEN_BUDGET = "token_budget"  # noqa: S105
    QUEUE_SHARE = "queue_share"
    """The person's own share of the queue is full."""
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    KEY_REVOKED = "key_revoked"
    """Revoked while it waited or ran."""
    LOADING = "loading"
    BACKEND_DOWN = "backend_down"
    DRAINING = "draining"
    FIRST_BYTE_LATE = "first_byte_late"
    UPSTREAM_ERROR = "upstream_error"
    """The backend answered with an error of its own, which is passed on."""
    UPSTREAM_CUT = "upstream_cut"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    INTERNAL_ERROR = "internal_error"


HTTP_STATUS = {
    Outcome.COMPLETED: 200,
    Outcome.CLIENT_CANCELLED: 499,
    Outcome.BAD_REQUEST: 400,
    Outcome.BAD_KEY: 401,
    Outcome.MODEL_NOT_ALLOWED: 403,
    Outcome.MODEL_UNKNOWN: 404,
    Outcome.TOO_LARGE: 413,
    Outcome.NOT_JSON: 415,
    Outcome.REQUESTS_PER_MINUTE: 429,
    Outcome.TOKENS_PER_MINUTE: 429,
    Outcome.TOKEN_BUDGET: 429,
    Outcome.QUEUE_SHARE: 429,
    Outcome.QUEUE_FULL: 503,
    Outcome.QUEUE_TIMEOUT: 503,
    Outcome.KEY_REVOKED: 401,
    Outcome.LOADING: 503,
    Outcome.BACKEND_DOWN: 503,
    Outcome.DRAINING: 503,
    Outcome.FIRST_BYTE_LATE: 504,
    Outcome.UPSTREAM_ERROR: 502,
    Outcome.UPSTREAM_CUT: 502,
    Outcome.UPSTREAM_TIMEOUT: 504,
    Outcome.INTERNAL_ERROR: 500,
}
"""The one map from outcomes to HTTP. 499 (nginx's "client closed request") is for the ledger:
nobody is there to read it. An UPSTREAM_ERROR keeps the backend's own status."""
