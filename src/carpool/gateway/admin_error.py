"""What the admin API refuses, in OpenAI's error shape."""

import json

from starlette.requests import Request
from starlette.responses import Response

from carpool.gateway.refusal import whole_seconds
from carpool.store.errors import DatabaseAway, InvalidField, NotFound

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
_AWAY_RETRY_S = 2


class AdminError(Exception):
    """`param` names the field at fault, `code` the kind of error for programs."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    def response(self) -> Response:
        kind = _TYPES.get(
            self.status, "server_error" if self.status >= 500 else "invalid_request_error"
        )
        error = {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(whole_seconds(self.retry_after_s))
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(
            json.dumps({"error": error}), self.status, headers, media_type="application/json"
        )


def of_store(error: Exception) -> AdminError:
    """What a store's error is to the client. The database's own words are for the log."""
    match error:
        case InvalidField():
            return AdminError(422, "invalid_field", str(error), param=error.field)
        case NotFound():
            return AdminError(404, "not_found", str(error))
        case DatabaseAway():
            return AdminError(
                503,
                "database_away",
                "the database cannot be reached at the moment; try again",
                retry_after_s=_AWAY_RETRY_S,
            )
        case _:
            return AdminError(500, "store_error", "the database refused; the log says why")


async def answer_error(request: Request, error: Exception) -> Response:
    """For Starlette: the answer to any error that a handler raised."""
    if isinstance(error, AdminError):
        return error.response()
    message = "the admin API failed on this request; its log says why"
    answer = AdminError(500, "internal_error", message).response()
    # Starlette answers this outside of all middleware.
    answer.headers["cache-control"] = "no-store"
    return answer
