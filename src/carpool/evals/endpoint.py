"""An OpenAI-compatible endpoint as evals use it: one question, one answer, precise errors."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import Any

from carpool.backends.address import Address
from carpool.backends.capacity_facts import parse_models
from carpool.errors import CarpoolError
from carpool.evals.answer import Answer, StreamedAnswer, whole_answer
from carpool.gateway.sse_events import EventSplitter, data_of, is_event
from carpool.gateway.upstream import Upstream
from carpool.gateway.upstream_connection import UpstreamResponse
from carpool.gateway.upstream_errors import (
    ConnectFailed,
    FirstByteLate,
    IdleTooLong,
    Timeouts,
    TotalTooLong,
    UpstreamError,
)

CHAT = "/v1/chat/completions"
TIMEOUT_S = 300.0
ASIDE_S = 5.0
"""For what an engine may say of itself, and need not."""
MAX_BODY_BYTES = 64 * 1024 * 1024
NUM_ATTEMPTS = 5
MAX_PAUSE_S = 60.0
_BUSY = (429, 503)
_SHOWN_CHARS = 300
_LATE = (FirstByteLate, IdleTooLong, TotalTooLong)


class Fault(StrEnum):
    """What is wrong with an endpoint or an answer of it."""

    DOWN = "down"
    WANTS_KEY = "wants a key"
    NO_MODEL = "no such model"
    BUSY = "busy"
    REFUSED = "refused"
    FAILED = "failed"
    CUT = "cut off"
    LATE = "late"
    MALFORMED = "malformed"


class EndpointError(CarpoolError):
    """No whole answer; `fault` says in which way, the message for people."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Endpoint:
    """The model called `model` at `url`, like http://127.0.0.1:8000/v1. `model` None: the only
    one there is, after `settle`. It belongs to one event loop; a request may take `timeout_s`.

    Raises BackendAddressError.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        api_key: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.address = Address.from_url(url)
        self.model = model
        self._api_key = api_key
        self._timeouts = Timeouts(total=timeout_s)
        self._upstream = Upstream(self.address)

    def __str__(self) -> str:
        return str(self.address)

    def close(self) -> None:
        self._upstream.close()

    async def settle(self) -> None:
        """Find out whether it answers, lets us in, and has the model; settles which that is.

        Raises EndpointError.
        """
        status, body = await self._whole("GET", "/v1/models", b"")
        if status in (404, 405) and self.model is not None:
            return
        self._check(status, body, "/v1/models")
        names, _ = parse_models(body)
        if self.model is None and len(names) == 1:
            self.model = names[0]
        if self.model in names:
            return
        listed = ", ".join(names[:20]) or "none"
        if self.model is None:
            raise EndpointError(
                Fault.NO_MODEL, f"say which model of {self} with --model; it has: {listed}"
            )
        raise EndpointError(
            Fault.NO_MODEL, f"{self} has no model {self.model[:100]!r}; it has: {listed}"
        )

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """The answer to a chat request, with "stream" as `body` says. One that is refused for a
        moment (429, 503) is sent again when it may be. Raises EndpointError."""
        for _ in range(NUM_ATTEMPTS - 1):
            try:
                return await self._ask(body)
            except _Busy as busy:
                await asyncio.sleep(busy.pause_s)
        return await self._ask(body)

    async def get_json(self, path: str) -> Any:
        """What it says of itself at `path`; None if it does not, or not soon."""
        return await self._aside("GET", path, b"")

    async def post_json(self, path: str, body: Mapping[str, Any]) -> Any:
        """As `get_json`."""
        return await self._aside("POST", path, _encoded(body))

    # ------------------------------------------------------------------ one request

    async def _ask(self, body: Mapping[str, Any]) -> Answer:
        raw = _encoded({"model": self.model, **body})
        start = time.perf_counter()
        try:
            async with await self._send("POST", CHAT, raw) as response:
                if response.status != 200:
                    self._check(response.status, await _read(response), CHAT, _pause(response))
                if _is_stream(response):
                    return await self._read_stream(response, start)
                raw = await _read(response)
        except UpstreamError as error:
            raise self._explained(error) from None
        except ValueError as error:
            raise self._malformed(str(error)) from None
        total_s = time.perf_counter() - start
        try:
            return whole_answer(_object(raw), total_s)
        except ValueError as error:
            raise self._malformed(str(error)) from None

    async def _read_stream(self, response: UpstreamResponse, start: float) -> Answer:
        """Raises EndpointError, UpstreamError, and ValueError for chunks that are none."""
        answer, is_done = StreamedAnswer(), False
        async for data in _events(response):
            if data == b"[DONE]":
                is_done = True
                continue
            chunk = _object(data)
            if "error" in chunk:
                raise EndpointError(
                    Fault.FAILED, f"{self} reported an error in its stream: {_told(data)}"
                )
            answer.add(chunk, time.perf_counter() - start)
        whole = answer.answer(time.perf_counter() - start)
        if not is_done and whole.finish_reason is None:
            raise EndpointError(Fault.CUT, f"{self} ended a stream before its answer was whole")
        return whole

    async def _whole(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            async with await self._send(method, path, body) as response:
                return response.status, await _read(response)
        except UpstreamError as error:
            raise self._explained(error) from None

    async def _aside(self, method: str, path: str, body: bytes) -> Any:
        try:
            async with asyncio.timeout(ASIDE_S):
                return _json_or_none(*await self._whole(method, path, body))
        except (EndpointError, TimeoutError):
            return None

    async def _send(self, method: str, path: str, body: bytes) -> UpstreamResponse:
        headers = [(b"accept", b"application/json, text/event-stream")]
        if body:
            headers.append((b"content-type", b"application/json"))
        if self._api_key is not None:
            headers.append((b"authorization", b"Bearer " + self._api_key.encode()))
        return await self._upstream.send(method, path, headers, body, self._timeouts)

    # ------------------------------------------------------------------ what went wrong

    def _check(self, status: int, body: bytes, path: str, pause_s: float | None = None) -> None:
        """Raises EndpointError for an answer that is none."""
        if status == 200:
            return
        told = f"{self} answered {path} with {status}: {_told(body)}"
        if status in (401, 403):
            hint = "give its key by --api-key-file or in CARPOOL_API_KEY"
            raise EndpointError(Fault.WANTS_KEY, f"{told}; {hint}")
        if status == 404:
            raise EndpointError(Fault.NO_MODEL, told)
        if status in _BUSY and pause_s is not None:
            raise _Busy(told, pause_s)
        raise EndpointError(Fault.FAILED if status >= 500 else Fault.REFUSED, told)

    def _explained(self, error: UpstreamError) -> EndpointError:
        if isinstance(error, ConnectFailed):
            return EndpointError(Fault.DOWN, f"{self} is down: {error}")
        if isinstance(error, _LATE):
            seconds = self._timeouts.total or 0.0
            return EndpointError(Fault.LATE, f"{self} took over {seconds:g} s for an answer")
        return EndpointError(Fault.CUT, f"{self} gave no whole answer: {error}")

    def _malformed(self, reason: str) -> EndpointError:
        return EndpointError(
            Fault.MALFORMED, f"{self} answered {CHAT} with no completion: {reason}"
        )


class _Busy(EndpointError):
    def __init__(self, message: str, pause_s: float) -> None:
        super().__init__(Fault.BUSY, message)
        self.pause_s = pause_s


async def _events(response: UpstreamResponse) -> AsyncIterator[bytes]:
    """The data of each event of a stream."""
    splitter = EventSplitter()
    async for piece in response:
        for event in splitter.feed(piece):
            if is_event(event) and (data := data_of(event)):
                yield data
    if is_event(splitter.rest) and (data := data_of(splitter.rest)):
        yield data


async def _read(response: UpstreamResponse) -> bytes:
    pieces, num_bytes = [], 0
    async for piece in response:
        num_bytes += len(piece)
        if num_bytes > MAX_BODY_BYTES:
            raise EndpointError(Fault.MALFORMED, f"an answer of over {MAX_BODY_BYTES} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def _is_stream(response: UpstreamResponse) -> bool:
    return any(
        name == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in response.headers
    )


def _pause(response: UpstreamResponse) -> float:
    """Seconds until it may be asked again, as it says; 1 where it does not."""
    for name, value in response.headers:
        if name == b"retry-after" and value.isdigit():
            return min(float(value), MAX_PAUSE_S)
    return 1.0


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        raise ValueError(f"no JSON: {_told(raw)}") from None
    if not isinstance(value, dict):
        raise ValueError(f"no JSON object: {_told(raw)}")
    return value


def _json_or_none(status: int, raw: bytes) -> Any:
    if status != 200:
        return None
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return None


def _told(raw: bytes) -> str:
    """What an answer says is wrong, in a line; its beginning, if it does not say."""
    text = raw.decode("utf-8", "replace")
    try:
        error = json.loads(text)
    except (ValueError, RecursionError):
        error = None
    for name in ("error", "message", "detail"):
        if isinstance(error, dict) and name in error:
            error = error[name]
    shown = error if isinstance(error, str) else text
    return " ".join(shown.split())[:_SHOWN_CHARS] or "nothing"
