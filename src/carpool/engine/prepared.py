"""A request that is ready to run, with the answer it will be written into."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from carpool.engine.errors import from_validation
from carpool.engine.generation import GenerationRequest
from carpool.engine.streaming import RequestFields, Response

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """`requests[i]` generates choice `i` of `response`."""

    requests: tuple[GenerationRequest, ...]
    response: Response
    is_stream: bool
    fields: RequestFields


def validated(model: type[M], body: Mapping[str, Any]) -> M:
    """Raises ApiError (400) for the first field that is wrong."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise from_validation(error) from None


def unix_time() -> int:
    return int(time.time())
