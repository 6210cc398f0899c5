"""An engine's answer on its way to the client."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote

from carpool.gateway.api_kind import ApiKind
from carpool.gateway.client import Client, ClientGone
from carpool.gateway.error_events import (
    ERROR_EVENT_STARTS,
    ErrorAnswer,
    error_answer,
    error_event,
)
from carpool.gateway.headers import Headers, downstream_headers, first_value
from carpool.gateway.model_alias import AliasWriter
from carpool.gateway.sse_events import EventSplitter, is_event
from carpool.gateway.upstream_connection import UpstreamResponse
from carpool.gateway.upstream_errors import CutOff, How, Malformed, Stopped, UpstreamError
from carpool.gateway.usage_sniffer import NOTHING_USED, Usage, UsageSniffer

# A first event is waited for until this many bytes have come.
MAX_PEEK_BYTES = 8 * 1024
MAX_WHOLE_BYTES = 256 * 1024 * 1024

# What may stand in a model's name in a header; the rest is percent-encoded.
_PLAIN = "/:@+=,;!$()[] "
_DONE = (b"data: [DONE]", b"data:[DONE]")
_LAST_EVENTS = (
    *_DONE,
    b"event: message_stop",
    b"event: response.completed",
    b"event: response.incomplete",
    b"event: response.failed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """How a request went. Times are loop time in seconds. `model` is the engine's name for the
    model; `message` says what went wrong, for people."""

    status: int
    usage: Usage
    first_byte_at: float | None
    ended_at: float
    how: How
    model: str
    message: str | None = None

    @property
    def usage_source(self) -> str:
        return self.usage.source


class EventRelay:
    """What is done to the events of one stream: noted, renamed, dropped."""

    __slots__ = ("_alias", "_sniffer", "_splitter", "first_event", "has_error", "last_event")

    def __init__(self, sniffer: UsageSniffer, alias: AliasWriter | None) -> None:
        self.first_event: bytes | None = None
        self.last_event = b""
        self.has_error = False  # an event after the first said so
        self._splitter = EventSplitter()
        self._sniffer = sniffer
        self._alias = alias

    def feed(self, data: bytes) -> bytes:
        """What of the stream can go to the client now. Raises Malformed."""
        pieces = [kept for piece in self._splitter.feed(data) if (kept := self._pass(piece))]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def rest(self) -> bytes:
        """What came after the last whole event."""
        return self._splitter.rest

    @property
    def has_ended(self) -> bool:
        """Whether the last event was one that ends a stream, if without the line after it."""
        return self.last_event.startswith(_LAST_EVENTS) or self.rest.startswith(_DONE)

    def _pass(self, piece: bytes) -> bytes:
        if not is_event(piece):
            return piece
        if self.first_event is None:
            self.first_event = piece
        elif piece.startswith(ERROR_EVENT_STARTS):
            self.has_error = True
        self.last_event = piece
        if not self._sniffer.see_event(piece):
            return b""
        return piece if self._alias is None else self._alias.rewrite(piece)


class Answer:
    """`status` and `headers` are the engine's. `body` is there, whole, if it is JSON; else it
    has begun and `is_stream` says whether it consists of events."""

    def __init__(
        self,
        response: UpstreamResponse,
        *,
        kind: ApiKind,
        sniffer: UsageSniffer,
        alias: AliasWriter | None,
        model: str,
        prompt_estimate: int,
    ) -> None:
        self.status = response.status
        self.headers: Headers = response.headers
        self.is_stream = False
        self.body: bytes | None = None
        self.first_byte_at: float | None = None
        self._response = response
        self._stopped_by: str | None = None
        self._kind = kind
        self._sniffer = sniffer
        self._alias = alias
        self._model = model
        self._prompt_estimate = prompt_estimate
        self._events = EventRelay(sniffer, alias)
        self._held = b""  # of a stream: what goes to the client first

    @property
    def usage(self) -> Usage:
        """By now; an answer that is an error cost nothing."""
        if self.status >= 400:
            return NOTHING_USED
        return self._sniffer.usage(self._prompt_estimate)

    @property
    def num_output_chunks(self) -> int:
        """Chunks of text that went by so far."""
        return self._sniffer.num_text_chunks

    async def begin(self) -> None:
        """Reads as far as the class says. Raises UpstreamError."""
        media_type = first_value(self.headers, b"content-type").partition(b";")[0].strip().lower()
        if media_type == b"text/event-stream":
            await self._peek()
        elif media_type == b"application/json" or media_type.endswith(b"+json"):
            await self._read_whole()

    async def relay(
        self, client: Client, extra_headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> Forwarded:
        """Sends the answer to the client. Returns when it has ended, in whatever way; an answer
        that was cut is not finished, so that the server closes the client's connection."""
        how, message = How.COMPLETED, None
        try:
            with client.interrupting():
                try:
                    await self._send(client, extra_headers)
                except UpstreamError as error:
                    how, message = error.how, str(error)
                    await self._send_error(client, error)
        except ClientGone:
            if self._stopped_by is not None:
                how, message = How.STOPPED, self._stopped_by
            elif how is How.COMPLETED and not self._events.has_ended:
                how, message = How.CLIENT_CANCELLED, "the client closed the connection"
        finally:
            self.close()
        if how is How.COMPLETED and (self.status >= 500 or self._events.has_error):
            how = How.UPSTREAM_ERROR
        return Forwarded(
            status=self.status,
            usage=self.usage,
            first_byte_at=self.first_byte_at,
            ended_at=self._now(),
            how=how,
            model=self._real_model,
            message=message,
        )

    def stop(self, message: str) -> None:
        """Ends an answer under way, with an error for the client: a revoked key, say."""
        self._stopped_by = message
        self._response.fail(Stopped(message))

    def close(self) -> None:
        """Leaves the answer; unless it is complete, the engine sees its connection closed."""
        self._response.close()

    @property
    def _real_model(self) -> str:
        return (self._alias.real_name if self._alias else None) or self._model

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _peek(self) -> None:
        """Up to the first event, so that an error has a status of its own."""
        self.is_stream = True
        held, num_bytes = [], 0
        while self._events.first_event is None and num_bytes < MAX_PEEK_BYTES:
            data = await self._response.read()
            if not data:
                self._check_end()
                break
            num_bytes += len(data)
            held.append(self._events.feed(data))
            if self._events.first_event is None and not self._events.rest:
                self._response.forget_first_byte()  # only comments
        self.first_byte_at = self._now()
        self._held = b"".join(held)
        if self._events.first_event is not None:
            error = error_answer(self._events.first_event)
            if error is not None:
                self._become(error)

    def _become(self, error: ErrorAnswer) -> None:
        self.is_stream = False
        self.status, self.body = error.status, error.body
        self.headers = [header for header in self.headers if header[0] != b"content-type"]
        self.headers.append((b"content-type", b"application/json"))

    async def _read_whole(self) -> None:
        self.first_byte_at = self._now()
        body = await self._rest_of_body()
        is_plain = not first_value(self.headers, b"content-encoding")
        if is_plain and not self._response.is_delimited and not _is_json(body):
            raise CutOff("the engine closed the connection in the middle of its answer")
        if self.status < 400:
            self._sniffer.see_whole(body)
            if self._alias is not None:
                body = self._alias.rewrite(body)
        self.body = body

    async def _rest_of_body(self) -> bytes:
        pieces, num_bytes = [], 0
        while data := await self._response.read():
            pieces.append(data)
            num_bytes += len(data)
            if num_bytes > MAX_WHOLE_BYTES:
                raise Malformed(f"the engine's answer is over {MAX_WHOLE_BYTES} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _check_end(self) -> None:
        """A body that ends with its connection may have been cut; its last event tells."""
        if not (self._response.is_delimited or self._events.has_ended):
            raise CutOff("the engine closed the connection before the stream's last event")

    async def _send(self, client: Client, extra_headers: Iterable[tuple[bytes, bytes]]) -> None:
        if not client.is_started:
            await client.start(self.status, self._client_headers(extra_headers))
        elif not self.is_stream:  # the status has gone out while the request was waiting
            await client.finish(await self._as_event())
            return
        if self.body is not None:
            await client.finish(self.body)
        elif self.is_stream:
            await self._send_events(client)
        else:
            while data := await self._response.read():
                self.first_byte_at = self.first_byte_at or self._now()
                await client.write(data)
            await client.finish()

    async def _as_event(self) -> bytes:
        """What was to be an answer of its own, as the only event of a stream."""
        if self.body is not None:
            return b"data: " + b" ".join(self.body.splitlines()) + b"\n\n"
        text = (await self._rest_of_body()).decode("utf-8", "replace")
        message = f"the engine answered with {self.status}: {text:.500}"
        return error_event(self._kind, message, code=How.UPSTREAM_ERROR, status=self.status)

    async def _send_events(self, client: Client) -> None:
        read, feed, write = self._response.read, self._events.feed, client.write
        if self._held:
            await write(self._held)
        try:
            while data := await read():
                if passed := feed(data):
                    await write(passed)
            self._check_end()
        except UpstreamError:
            if not self._events.has_ended:
                raise  # else the client has it all
        await client.finish(self._events.rest)

    async def _send_error(self, client: Client, error: UpstreamError) -> None:
        """Only to a stream: it can still say so. What else was cut just ends."""
        if self.is_stream:
            await client.write(error_event(self._kind, str(error), code=error.how.value))

    def _client_headers(self, extra_headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The engine's, but for those that the gateway has something of its own to say in."""
        extra = [(b"x-carpool-model", _in_header(self._real_model)), *extra_headers]
        if self.body is not None:
            extra.append((b"content-length", b"%d" % len(self.body)))
        replaced = {name for name, _ in extra}
        headers = downstream_headers(self.headers, is_stream=self.is_stream)
        return [header for header in headers if header[0] not in replaced] + extra


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=256)
def _in_header(model: str) -> bytes:
    return quote(model, safe=_PLAIN).encode()
