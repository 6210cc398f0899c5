"""The endpoint that a load goes to."""

import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from carpool.backends.address import Address, BackendAddressError
from carpool.backends.backend import BackendUnreachable
from carpool.backends.http_get import Answer, http_get
from carpool.bench.errors import BenchError

PROBE_TIMEOUT_S = 10.0


class Api(StrEnum):
    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self is Api.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Target:
    """`metrics`: whose GET /metrics says what the engine did; None: the endpoint's own.

    `takes_ignore_eos`, `takes_stream_options`: fields of a request that not every endpoint
    knows; one that refuses them is asked without (`carpool.bench.dialect`).
    """

    address: Address
    model: str
    api_key: str | None = field(default=None, repr=False)
    api: Api = Api.CHAT
    metrics: Address | None = None
    takes_ignore_eos: bool = True
    takes_stream_options: bool = True

    def __str__(self) -> str:
        return f"{self.model} at {self.address}"

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def without_key(self, text: str) -> str:
        """`text` as it may be shown: servers put keys into their complaints."""
        return text.replace(self.api_key, "***") if self.api_key else text


async def find_target(
    url: str,
    *,
    model: str | None = None,
    api_key: str | None = None,
    api: Api = Api.CHAT,
    metrics_url: str | None = None,
) -> Target:
    """The endpoint, after a look at its GET /v1/models. `model` None: the only one there.

    Raises BenchError for an endpoint that is down, wants a key or has no such model.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key):
        raise BenchError("the API key is empty or has characters that no key has")
    address = _address(url)
    target = Target(
        address, model or "", api_key, api, _address(metrics_url) if metrics_url else None
    )
    try:
        answer = await http_get(
            address, "/v1/models", timeout_s=PROBE_TIMEOUT_S, headers=target.headers
        )
    except BackendUnreachable as error:
        advice = "; is it running?" if "cannot connect" in str(error) else ""
        raise BenchError(f"{error}{advice}") from None
    if answer.status in (401, 403):
        given = "the key was refused" if api_key else "it wants a key"
        raise BenchError(
            f"{address}: {given} (status {answer.status}); give one by --api-key-file or in "
            "CARPOOL_API_KEY"
        )
    names = _model_names(answer)
    return Target(address, _chosen(address, model, names), api_key, api, target.metrics)


def _address(url: str) -> Address:
    try:
        return Address.from_url(url)
    except BackendAddressError as error:
        raise BenchError(str(error)) from None


def _model_names(answer: Answer) -> list[str] | None:
    """None where the endpoint does not list its models."""
    if answer.status != 200:
        return None
    try:
        body: Any = json.loads(answer.body)
    except ValueError:
        return None
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list):
        return None
    return [str(each["id"]) for each in data if isinstance(each, dict) and "id" in each]


def _chosen(address: Address, model: str | None, names: list[str] | None) -> str:
    if names is None:
        if model is None:
            raise BenchError(f"{address} does not list its models; give one by --model")
        return model
    if model is None:
        if len(names) != 1:
            listed = ", ".join(names) or "none"
            raise BenchError(f"{address} has {len(names)} models ({listed}); give one by --model")
        return names[0]
    if model not in names:
        raise BenchError(f"{address} has no model {model!r}; it has {', '.join(names) or 'none'}")
    return model
