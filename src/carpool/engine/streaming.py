"""Runs requests on the engine for one client: as a stream or to the end, never unwatched."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple, Protocol, TypeVar

from starlette.types import Message, Receive, Send

from carpool.engine.client import EngineClient, QueueFull
from carpool.engine.errors import (
    ApiError,
    from_full_queue,
    from_rejection,
    invalid,
    server_error,
    unavailable,
)
from carpool.engine.generation import GenerationDelta, GenerationRequest
from carpool.engine.grammar_error import GrammarError
from carpool.engine.json_body import ClientDisconnected
from carpool.engine.sse import error_event
from carpool.scheduling.rejection import RequestRejected
from carpool.scheduling.request import FinishReason

T = TypeVar("T")
Headers = list[tuple[bytes, bytes]]

_EXPECTED = (ApiError, RequestRejected, QueueFull, GrammarError)


class RequestFields(NamedTuple):
    """Which fields of a request hold its prompt and its grammar, to name them in errors."""

    prompt: str
    grammar: str = ""


class Response(Protocol):
    """What an answer is made of as deltas come in."""

    def chunk(self, index: int, delta: GenerationDelta) -> bytes: ...
    def end(self) -> bytes: ...
    def collect(self, index: int, delta: GenerationDelta) -> None: ...
    def body(self) -> dict[str, Any]: ...


async def generate_all(
    engine: EngineClient, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[tuple[int, GenerationDelta], None]:
    """Deltas of all `requests` as they come, each with the index of its request.

    The first that fails ends all. Raises what `EngineClient.generate` raises, and ApiError
    for a request that the engine ended itself.
    """
    stream = _merge(engine, requests) if len(requests) > 1 else _single(engine, requests[0])
    async with aclosing(stream):
        async for index, delta in stream:
            if delta.finish_reason is FinishReason.ERROR:
                raise server_error(delta.error or "the engine failed on this request")
            if delta.finish_reason is FinishReason.ABORT:
                raise unavailable(
                    "the server ended this request; send it again",
                    engine.retry_after_s,
                    "aborted",
                )
            yield index, delta


async def _single(
    engine: EngineClient, request: GenerationRequest
) -> AsyncGenerator[tuple[int, GenerationDelta], None]:
    async with aclosing(engine.generate(request)) as stream:
        async for delta in stream:
            yield 0, delta


async def _merge(
    engine: EngineClient, requests: Sequence[GenerationRequest]
) -> AsyncGenerator[tuple[int, GenerationDelta], None]:
    queue: asyncio.Queue[tuple[int, GenerationDelta] | None] = asyncio.Queue()

    async def pump(index: int, request: GenerationRequest) -> None:
        try:
            async with aclosing(engine.generate(request)) as stream:
                async for delta in stream:
                    queue.put_nowait((index, delta))
        finally:
            queue.put_nowait(None)

    tasks = [asyncio.create_task(pump(i, request)) for i, request in enumerate(requests)]
    try:
        num_open = len(tasks)
        while num_open:
            if (item := await queue.get()) is not None:
                yield item
                continue
            num_open -= 1
            for task in tasks:
                if task.done():
                    task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def respond(
    engine: EngineClient,
    requests: Sequence[GenerationRequest],
    response: Response,
    *,
    fields: RequestFields,
    is_stream: bool,
    headers: Headers,
    receive: Receive,
    send: Send,
) -> None:
    """Answer a client, and abort what it asked for as soon as it goes away.

    Raises ApiError while nothing has been sent yet, and ClientDisconnected.
    """
    deltas = generate_all(engine, requests)
    if is_stream:
        work = _send_stream(deltas, response, fields, headers, send)
    else:
        work = _send_whole(deltas, response, fields, headers, send)
    await _while_connected(receive, work)


async def _while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client goes away."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_whole(
    deltas: AsyncGenerator[tuple[int, GenerationDelta], None],
    response: Response,
    fields: RequestFields,
    headers: Headers,
    send: Send,
) -> None:
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                response.collect(index, delta)
    except _EXPECTED as error:
        raise _api_error(error, fields) from error
    await send_json(send, 200, response.body(), headers)


async def _send_stream(
    deltas: AsyncGenerator[tuple[int, GenerationDelta], None],
    response: Response,
    fields: RequestFields,
    headers: Headers,
    send: Send,
) -> None:
    """The status line waits for the first delta: up to then a refusal has its own status."""
    has_started = False
    try:
        async with aclosing(deltas):
            async for index, delta in deltas:
                chunk = response.chunk(index, delta)
                if not has_started:
                    has_started = True
                    await send(_stream_start(headers))
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except Exception as error:
        failure = _api_error(error, fields)
        if has_started:
            await send({"type": "http.response.body", "body": error_event(failure)})
        elif isinstance(error, _EXPECTED):
            raise failure from error
        if not isinstance(error, _EXPECTED):
            raise
        return
    await send({"type": "http.response.body", "body": response.end()})


def _stream_start(headers: Headers) -> Message:
    fixed = [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
    ]
    return {"type": "http.response.start", "status": 200, "headers": [*fixed, *headers]}


def _api_error(error: Exception, fields: RequestFields) -> ApiError:
    match error:
        case ApiError():
            return error
        case RequestRejected():
            return from_rejection(error, fields.prompt)
        case GrammarError():
            return invalid(f"{fields.grammar}: {error}", fields.grammar)
        case QueueFull():
            return from_full_queue(error)
        case _:
            return server_error("the server failed on this request; its log says why")


async def send_json(send: Send, status: int, value: Any, headers: Headers) -> None:
    await send_body(send, status, json.dumps(value, allow_nan=False).encode("ascii"), headers)


async def send_body(
    send: Send,
    status: int,
    body: bytes,
    headers: Headers,
    content_type: bytes = b"application/json",
) -> None:
    fixed = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})
