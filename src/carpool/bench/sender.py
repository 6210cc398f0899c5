"""Sends requests and turns what came back into records, while other answers arrive."""

import asyncio
import time
from collections import deque

from carpool.bench.answer import Answer
from carpool.bench.connection import Connections
from carpool.bench.exchange import Exchange
from carpool.bench.prompts import Prompt
from carpool.bench.record import RequestRecord
from carpool.bench.request_bytes import RequestWriter
from carpool.bench.target import Target

# Answers are read in slices of so many seconds, so that nothing that arrives waits for it.
_SLICE_S = 0.0002
_clock = time.monotonic


class Sender:
    """To one target, in one event loop."""

    def __init__(self, target: Target, timeout_s: float, temperature: float | None = None) -> None:
        self._in_flight: set[Exchange] = set()
        self._num_pieces_done = 0
        self._target = target
        self._timeout_s = timeout_s
        self._writer = RequestWriter(target, temperature)
        self._connections = Connections(target.address)
        self._unread: deque[tuple[Exchange, Answer, asyncio.Future[None]]] = deque()
        self._reader: asyncio.Task[None] | None = None

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_pieces(self) -> int:
        """Of all answers so far, those that are arriving included."""
        return self._num_pieces_done + sum(len(each.pieces) for each in self._in_flight)

    def give_up(self, error: str, text: str) -> None:
        """Ends what is in flight, by the name of `error`; what came of it is in the records."""
        for exchange in list(self._in_flight):
            exchange.finish(_clock(), error, text)

    async def ask(self, number: int, prompt: Prompt, due: float) -> tuple[RequestRecord, str]:
        """The record, and the text of the answer."""
        request = self._writer.write(prompt)
        exchange = Exchange(due, asyncio.get_running_loop().create_future())
        self._in_flight.add(exchange)
        try:
            await self._connections.fetch(request, exchange, self._timeout_s)
        finally:
            self._in_flight.discard(exchange)
            self._num_pieces_done += len(exchange.pieces)
        answer = await self._read(exchange)
        return self._record(number, prompt, exchange, answer), answer.text

    def close(self) -> None:
        self._connections.close()
        if self._reader is not None:
            self._reader.cancel()

    async def _read(self, exchange: Exchange) -> Answer:
        answer = Answer()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unread.append((exchange, answer, done))
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read_all())
        await done
        return answer

    async def _read_all(self) -> None:
        while self._unread:
            exchange, answer, done = self._unread.popleft()
            until = _clock() + _SLICE_S
            for _ in answer.read(exchange):
                if _clock() > until:
                    await asyncio.sleep(0)
                    until = _clock() + _SLICE_S
            exchange.pieces.clear()
            if not done.done():
                done.set_result(None)

    def _record(
        self, number: int, prompt: Prompt, exchange: Exchange, answer: Answer
    ) -> RequestRecord:
        is_reported = answer.completion_tokens is not None
        return RequestRecord(
            number=number,
            due=exchange.due,
            sent=exchange.sent,
            ended=exchange.ended,
            status=exchange.status,
            error=answer.error,
            error_text=self._target.without_key(answer.error_text),
            first_token=answer.first_token,
            first_answer_token=answer.first_answer_token,
            last_token=answer.last_token,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.completion_tokens or 0 if is_reported else len(answer.token_times),
            is_usage_reported=is_reported,
            finish_reason=answer.finish_reason,
            queue_ms=_number(exchange.headers.get(b"x-carpool-queue-ms")),
            max_tokens=prompt.max_tokens,
            asks_for_all=not prompt.ends_at_eos,
            is_stream=answer.is_stream,
            token_times=answer.token_times,
        )


def _number(value: bytes | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
