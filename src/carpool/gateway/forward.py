"""A request goes to an engine and its answer to the client: bytes through, usage noted.

    try:
        answer = await ask(request, target)           # nothing has been sent to the client yet
    except UpstreamError as error:                    # so: another engine, or a refusal
        ...
    forwarded = await answer.relay(client, headers)   # from here on there is no way back

`forward` is both in one. All within `with Client(receive, send) as client`.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from carpool.gateway.answer import Answer, Forwarded
from carpool.gateway.api_kind import ApiKind
from carpool.gateway.client import Client, ClientGone
from carpool.gateway.headers import upstream_headers
from carpool.gateway.json_object import JsonObject
from carpool.gateway.model_alias import AliasWriter
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_errors import How, Timeouts
from carpool.gateway.usage_sniffer import Usage, UsageSniffer, usage_request


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a client asked for. `headers`: names in lower case. `model`: the name as asked.

    `changes`, `renames` and `removals` are done to the top-level fields of a JSON body.
    `prompt_estimate` (tokens) stands in when the engine does not get to report.
    """

    kind: ApiKind
    path: str
    headers: Iterable[tuple[bytes, bytes]] = ()
    body: JsonObject | bytes = b""
    model: str = ""
    method: str = "POST"
    prompt_estimate: int = 0
    changes: Mapping[str, Any] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    removals: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The engine that is to answer. `model`: its own name for the model (None: as asked);
    `key`: what it wants as a bearer token; `has_stream_usage`: it knows `include_usage`;
    `headers`: what the gateway has to tell it."""

    upstream: Upstream
    model: str | None = None
    key: str | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    has_stream_usage: bool = True
    headers: tuple[tuple[bytes, bytes], ...] = ()


async def ask(request: ModelRequest, target: Target) -> Answer:
    """The engine's answer: whole if it is JSON, else begun, up to its first event.

    An engine that reports an error as the first event of a stream gets its real status. The
    caller relays the answer or closes it. Raises UpstreamError, and then nothing is left open.
    """
    fields: Mapping[str, Any] = {}
    body = request.body
    hidden: Mapping[str, Any] = {}
    if isinstance(body, JsonObject):
        fields = body.fields
        if target.has_stream_usage:
            hidden = usage_request(request.kind, fields)
        named = {} if target.model is None else {"model": target.model}
        body = body.changed(
            {**request.changes, **named, **hidden}, request.renames, request.removals
        )
    response = await target.upstream.send(
        request.method,
        request.path,
        [*upstream_headers(request.headers, target.key), *target.headers],
        body,
        target.timeouts,
    )
    has_alias = target.model is not None and target.model != request.model
    answer = Answer(
        response,
        kind=request.kind,
        sniffer=UsageSniffer(request.kind, is_chunk_hidden=bool(hidden)),
        alias=AliasWriter(request.model) if has_alias else None,
        model=target.model or request.model,
        prompt_estimate=request.prompt_estimate,
    )
    try:
        await answer.begin()
    except BaseException:
        answer.close()
        raise
    return answer


async def forward(
    request: ModelRequest,
    target: Target,
    client: Client,
    extra_headers: Iterable[tuple[bytes, bytes]] = (),
) -> Forwarded:
    """Asks and relays. A client that goes closes the connection to the engine at once.

    Raises UpstreamError when the engine failed before anything of its answer was sent; after
    that, how it went is in the result.
    """
    try:
        with client.interrupting():
            answer = await ask(request, target)
    except ClientGone:
        return left_before_answer(request, target)
    return await answer.relay(client, extra_headers)


def left_before_answer(request: ModelRequest, target: Target) -> Forwarded:
    """The client went before the engine answered: it had the prompt to work on."""
    return Forwarded(
        status=499,
        usage=Usage(request.prompt_estimate, 0, 0, "estimated"),
        first_byte_at=None,
        ended_at=asyncio.get_running_loop().time(),
        how=How.CLIENT_CANCELLED,
        model=target.model or request.model,
    )
