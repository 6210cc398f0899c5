"""What the admin API takes: bodies and queries, checked field by field."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request

from carpool.gateway.admin_error import AdminError
from carpool.gateway.body import read_body
from carpool.gateway.json_object import JsonObject, JsonObjectError
from carpool.gateway.refusal import Refusal
from carpool.store.errors import InvalidField
from carpool.store.limits import LIMIT_NAMES, Limits

MAX_BODY_BYTES = 64 * 1024
_NAME_CHARS = 100


class Fields(BaseModel):
    """Types are strict, and no other fields are taken."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NoFields(Fields):
    """A body may be left out, or hold nothing."""


class LimitFields(Fields):
    """null is no limit."""

    rpm: int | None = None
    tpm: int | None = None
    max_in_flight: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    daily_tokens: int | None = None
    monthly_tokens: int | None = None

    def limits(self) -> Limits:
        return Limits(**{name: getattr(self, name) for name in LIMIT_NAMES})

    def limit_changes(self) -> dict[str, int | None]:
        """Those that the body names."""
        return {name: getattr(self, name) for name in LIMIT_NAMES if name in self.model_fields_set}


class NewPersonFields(LimitFields):
    name: str
    weight: float = 1.0


class PersonFields(LimitFields):
    name: str = ""
    weight: float = 1.0


class KeyFields(LimitFields):
    """`models` null: all; `expires_at` in ISO 8601, null: never."""

    label: str = ""
    models: list[str] | None = None
    lane: Literal["interactive", "batch"] = "interactive"
    is_private: bool = False
    expires_at: str | None = None


class NewKeyFields(KeyFields):
    """`person` by id or name; they are added on their own."""

    person: str


class NewEngineFields(Fields):
    model: str


class PromotionFields(Fields):
    """`replaces` is the id of an engine."""

    replaces: str


class EnginesQuery(Fields):
    model: str | None = None


class NoQuery(Fields):
    pass


class KeysQuery(Fields):
    person: str | None = None


class RemovalQuery(Fields):
    revoke_keys: Literal["true", "false"] = "false"


class UsageQuery(Fields):
    by: Literal["person", "key", "model", "day"] = "person"
    since: str | None = None
    until: str | None = None
    format: Literal["json", "csv"] = "json"


T = TypeVar("T", bound=Fields)


async def read_fields(request: Request, kind: type[T]) -> T:
    """The body of a request. Raises AdminError."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise AdminError(
            415, "not_json", "send the header Content-Type: application/json", param="content-type"
        )
    try:
        raw = await read_body(request.receive, dict(request.scope["headers"]), MAX_BODY_BYTES)
        body = JsonObject.parse(raw).fields if raw or kind is not NoFields else {}
    except Refusal as refusal:
        raise AdminError(refusal.status, "too_large", refusal.message) from None
    except JsonObjectError as error:
        raise AdminError(400, "bad_json", str(error)) from None
    return _checked(kind, body)


def read_query(request: Request, kind: type[T]) -> T:
    """The query of a request's URL. Raises AdminError."""
    names = [name for name, _ in request.query_params.multi_items()]
    for name in names:
        if names.count(name) > 1:
            raise AdminError(
                422, "invalid_field", f"{name:.{_NAME_CHARS}} is given twice", param=name
            )
    return _checked(kind, request.query_params)


def parse_time(field: str, text: str | None) -> float | None:
    """Unix seconds of ISO 8601, UTC where no zone is given. Raises InvalidField."""
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidField(
            field, "takes a time like 2027-01-31T12:00:00Z, or 2027-01-31, in UTC"
        ) from None


def _checked(kind: type[T], values: Mapping[str, Any]) -> T:
    try:
        return kind.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(part) for part in first["loc"])[:_NAME_CHARS]
    message = first["msg"].removeprefix("Input ").replace("should be", "must be")
    match first["type"]:
        case "extra_forbidden":
            there = ", ".join(kind.model_fields) or "none"
            message = f"{json.dumps(field)} is no field here; there are: {there}"
        case "missing":
            message = f"{field} is missing"
        case _:
            message = f"{field} {message}"
    raise AdminError(422, "invalid_field", message, param=field)
