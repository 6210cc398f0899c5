"""One request from its key to its row in the ledger.

What it takes on the way (tokens of its limits, a place in the queue, a seat, a replica's load)
is held by `with` statements around the answer's body, and is back when the last of them ends,
however that comes.
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from carpool.gateway.answer import Answer, Forwarded
from carpool.gateway.api_kind import ApiKind
from carpool.gateway.circuit_breaker import Attempt
from carpool.gateway.client import Client, ClientGone
from carpool.gateway.error_events import error_event
from carpool.gateway.forward import ModelRequest, Target, ask, left_before_answer
from carpool.gateway.gate import Gate, Seat
from carpool.gateway.headers import first_value
from carpool.gateway.json_object import JsonObject
from carpool.gateway.key_ring import Caller
from carpool.gateway.ledger import Ledger
from carpool.gateway.limits import KeyMeter, TokenReservation
from carpool.gateway.metrics import GatewayMetrics
from carpool.gateway.outcome import Outcome
from carpool.gateway.output_cap import clamped, has_output, output_cap
from carpool.gateway.refusal import RETRIED, Refusal, whole_seconds
from carpool.gateway.routing import PREFIX_BYTES, Replica, choose_replica
from carpool.gateway.served_model import ServedModel
from carpool.gateway.ticket import Ticket
from carpool.gateway.token_estimate import ExpectedOutput
from carpool.gateway.upstream_errors import How, UpstreamError
from carpool.store.usage_row import UsageRow

HEARTBEAT_S = 10.0

OUTCOMES = {
    How.COMPLETED: Outcome.COMPLETED,
    How.CLIENT_CANCELLED: Outcome.CLIENT_CANCELLED,
    How.UPSTREAM_ERROR: Outcome.UPSTREAM_ERROR,
    How.UPSTREAM_CUT: Outcome.UPSTREAM_CUT,
    How.UPSTREAM_MALFORMED: Outcome.UPSTREAM_CUT,
    How.CONNECT_FAILED: Outcome.BACKEND_DOWN,
    How.FIRST_BYTE_TIMEOUT: Outcome.FIRST_BYTE_LATE,
    How.IDLE_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    How.TOTAL_TIMEOUT: Outcome.UPSTREAM_TIMEOUT,
    How.STOPPED: Outcome.DRAINING,
}
_RETRY_DOWN_S = 2
# Who goes first is decided here, and an engine would believe the client.
_NOT_THE_CLIENTS = ("priority",)


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request, and what becomes of it: filled in as it goes along."""

    request_id: str
    kind: ApiKind
    path: str
    headers: Mapping[bytes, bytes]
    raw_headers: list[tuple[bytes, bytes]]
    caller: Caller
    body: JsonObject
    model: ServedModel
    asked_name: str
    arrived_at: float
    started_at: float
    prompt_estimate: int = 0
    queue_s: float = 0.0
    position: int = 0
    replica: Replica | None = None
    answer: Answer | None = None
    """While it is on its way to the client."""
    stopped_by: Outcome | None = None
    first_byte_at: float | None = None
    forwarded: Forwarded | None = None
    outcome: Outcome = Outcome.INTERNAL_ERROR
    status: int = 500
    rate_headers: list[tuple[bytes, bytes]] = field(default_factory=list)

    @property
    def fields(self) -> Mapping[str, Any]:
        return self.body.fields

    @property
    def is_stream(self) -> bool:
        return self.fields.get("stream") is True

    def take(self, forwarded: Forwarded) -> None:
        """How it went at the engine."""
        self.forwarded = forwarded
        self.first_byte_at = forwarded.first_byte_at
        self.status = forwarded.status
        self.outcome = OUTCOMES[forwarded.how]
        if forwarded.how is How.STOPPED and self.stopped_by is not None:
            self.outcome = self.stopped_by
        if forwarded.how is How.COMPLETED and forwarded.status >= 400:
            self.outcome = Outcome.BAD_REQUEST

    def answer_headers(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"x-request-id", self.request_id.encode("latin-1")),
            (b"x-carpool-queue-ms", b"%d" % round(1e3 * self.queue_s)),
            (b"x-carpool-queue-position", b"%d" % self.position),
            *self.rate_headers,
        ]


class Exchanges:
    """Serves exchanges; owns what they share beyond the model: histories, running answers."""

    def __init__(self, ledger: Ledger, metrics: GatewayMetrics) -> None:
        self._ledger = ledger
        self._metrics = metrics
        self._expected = ExpectedOutput()
        self._running: defaultdict[str, dict[Exchange, Client]] = defaultdict(dict)

    def stop_key(self, key_id: str) -> None:
        """End the requests of a key that was revoked."""
        refusal = Refusal(Outcome.KEY_REVOKED, "the key of this request was revoked")
        _stop(self._running.get(key_id, {}), refusal)

    def stop_all(self, refusal: Refusal) -> None:
        """End everything that runs."""
        for running in self._running.values():
            _stop(running, refusal)

    async def serve(self, exchange: Exchange, meter: KeyMeter | None, client: Client) -> None:
        """Answer `client`. Raises Refusal while nothing has been sent to it, and ClientGone."""
        key_id = exchange.caller.key.key_id
        running = self._running[key_id]
        running[exchange] = client
        try:
            await self._serve(exchange, meter, client)
        finally:
            del running[exchange]
            if not running:
                self._running.pop(key_id, None)

    async def _serve(self, exchange: Exchange, meter: KeyMeter | None, client: Client) -> None:
        limits = exchange.caller.key.limits
        model, person_id = exchange.model, exchange.caller.person.person_id
        num_prompt = model.bytes_per_token.prompt_tokens(len(exchange.body.raw))
        exchange.prompt_estimate = num_prompt
        _check_prompt(num_prompt, limits.max_prompt_tokens)
        changes = clamped(exchange.kind, exchange.fields, limits.max_output_tokens)
        cap = output_cap(exchange.kind, {**exchange.fields, **changes})
        num_output = self._expected.tokens(person_id, cap) if has_output(exchange.kind) else 0
        ticket = Ticket(
            request_id=exchange.request_id,
            person_id=person_id,
            num_prompt_tokens=num_prompt,
            num_output_tokens=num_output,
            weight=exchange.caller.person.weight,
            lane=exchange.caller.key.lane,
            key_id=exchange.caller.key.key_id,
            max_in_flight=limits.max_in_flight,
        )
        reserved = _reserved(meter, num_prompt + num_output, exchange)
        with reserved as reservation, model.gate.enter(ticket) as seat:
            exchange.position = ticket.position
            await self._wait(exchange, seat, client)
            request = ModelRequest(
                kind=exchange.kind,
                path=exchange.path,
                headers=exchange.raw_headers,
                body=exchange.body,
                model=exchange.asked_name,
                prompt_estimate=num_prompt,
                changes=changes,
                removals=_NOT_THE_CLIENTS,
            )
            forwarded = await self._forward(exchange, request, client)
            usage = forwarded.usage
            seat.used(usage.prompt_tokens, usage.output_tokens)
            if reservation is not None:
                reservation.settle(usage.prompt_tokens + usage.output_tokens)
            if usage.source == "reported" and forwarded.status < 400:
                model.bytes_per_token.learn(len(exchange.body.raw), usage.prompt_tokens)
                if has_output(exchange.kind):
                    self._expected.learn(person_id, usage.output_tokens)

    async def _wait(self, exchange: Exchange, seat: Seat, client: Client) -> None:
        loop = asyncio.get_running_loop()
        entered = loop.time()
        if not seat.is_granted:
            beat_s = _heartbeat_s(exchange)
            while True:
                with client.interrupting():
                    try:
                        async with asyncio.timeout(beat_s):
                            await seat.wait()
                        break
                    except TimeoutError:
                        pass
                await _heartbeat(exchange, client)
        else:
            await seat.wait()
        exchange.queue_s = loop.time() - entered
        self._metrics.queued(exchange.queue_s)

    async def _forward(
        self, exchange: Exchange, request: ModelRequest, client: Client
    ) -> Forwarded:
        now = asyncio.get_running_loop().time()
        replica = choose_replica(exchange.model.replicas, exchange.body.raw[:PREFIX_BYTES], now)
        if replica is None:
            raise _down(exchange.model, now)
        exchange.replica = replica
        target = Target(
            upstream=replica.upstream,
            model=replica.model,
            key=replica.api_key,
            timeouts=exchange.model.timeouts,
            has_stream_usage=replica.has_stream_usage,
        )
        with replica.loaded(now) as attempt:
            try:
                with client.interrupting():
                    answer = await ask(request, target)
                exchange.answer = answer
                more = _retry_after(answer, exchange.model.gate)
                forwarded = await answer.relay(client, [*exchange.answer_headers(), *more])
            except UpstreamError as error:
                attempt.failed(asyncio.get_running_loop().time())
                raise _refusal_of(error) from error
            except ClientGone:
                forwarded = left_before_answer(request, target)
            finally:
                exchange.answer = None
            _judge(attempt, forwarded, asyncio.get_running_loop().time())
        exchange.take(forwarded)
        return forwarded

    def book(self, exchange: Exchange) -> None:
        """The exchange has ended: its row, and its figures."""
        now = asyncio.get_running_loop().time()
        forwarded, first = exchange.forwarded, exchange.first_byte_at
        usage = forwarded.usage if forwarded else None
        num_prompt = usage.prompt_tokens if usage else 0
        num_output = usage.output_tokens if usage else 0
        tpot = None
        if first is not None and forwarded is not None and num_output > 1:
            tpot = 1e3 * (forwarded.ended_at - first) / (num_output - 1)
        self._metrics.ended(exchange.model.name, exchange.outcome)
        self._metrics.used(num_prompt, num_output)
        if first is not None:
            self._metrics.answered(first - exchange.arrived_at)
        self._ledger.record(
            UsageRow(
                request_id=exchange.request_id,
                started_at=exchange.started_at,
                person_id=exchange.caller.person.person_id,
                key_id=exchange.caller.key.key_id,
                model=exchange.asked_name,
                backend=exchange.replica.name if exchange.replica else "",
                api=exchange.kind.value,
                lane=exchange.caller.key.lane,
                prompt_tokens=num_prompt,
                cached_tokens=usage.cached_tokens if usage else 0,
                output_tokens=num_output,
                usage_source=usage.source if usage else "estimated",
                queue_ms=1e3 * exchange.queue_s,
                ttft_ms=None if first is None else 1e3 * (first - exchange.arrived_at),
                tpot_ms=tpot,
                total_ms=1e3 * (now - exchange.arrived_at),
                outcome=exchange.outcome.value,
                status=exchange.status,
                is_stream=exchange.is_stream,
                is_fallback=False,
            )
        )


@contextmanager
def _reserved(
    meter: KeyMeter | None, num_tokens: int, exchange: Exchange
) -> Iterator[TokenReservation | None]:
    """Tokens of the key's limits; back if nothing settles them. Raises Refusal."""
    if meter is None:
        yield None
        return
    now = asyncio.get_running_loop().time()
    try:
        reservation = meter.reserve(num_tokens, now, datetime.now(UTC))
    finally:
        exchange.rate_headers = meter.headers(now)
    try:
        yield reservation
    finally:
        reservation.cancel()


def _stop(running: Mapping[Exchange, Client], refusal: Refusal) -> None:
    """Wherever they are: a stream that has begun gets an error event, others the refusal."""
    for exchange, client in list(running.items()):
        exchange.stopped_by = refusal.outcome
        if exchange.answer is not None:
            exchange.answer.stop(refusal.message)
        else:
            client.interrupt(refusal)


def _retry_after(answer: Answer, gate: Gate) -> list[tuple[bytes, bytes]]:
    """For an engine that is busy and does not say for how long: until the next seat comes free."""
    if answer.status not in RETRIED or first_value(answer.headers, b"retry-after"):
        return []
    wait_s = gate.admission.seconds_until(1)
    return [(b"retry-after", b"%d" % whole_seconds(wait_s))]


def _heartbeat_s(exchange: Exchange) -> float | None:
    """Seconds between signs of life, for a stream that asked for them by a header
    (`x-carpool-heartbeat: 5`, or anything for the default)."""
    wanted = exchange.headers.get(b"x-carpool-heartbeat")
    if wanted is None or not exchange.is_stream:
        return None
    return min(60.0, max(1.0, float(wanted))) if wanted.isdigit() else HEARTBEAT_S


async def _heartbeat(exchange: Exchange, client: Client) -> None:
    """A comment of one line: with an empty line after it, some clients would take it for an
    event without data."""
    if not client.is_started:
        stream = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await client.start(
            200, [*stream, (b"x-accel-buffering", b"no"), *exchange.answer_headers()]
        )
    await client.write(b": waiting\n")


async def send_refusal(
    client: Client, refusal: Refusal, kind: ApiKind, headers: list[tuple[bytes, bytes]]
) -> None:
    """As an answer of its own or, when a stream has begun with heartbeats, as its last event."""
    if client.is_started:
        await client.finish(error_event(kind, refusal.message, code=refusal.outcome.value))
        return
    body = refusal.body()
    length = (b"content-length", b"%d" % len(body))
    await client.start(refusal.status, [*refusal.headers(), length, *headers])
    await client.finish(body)


def _check_prompt(num_tokens: int, limit: int | None) -> None:
    if limit is not None and num_tokens > limit:
        raise Refusal(
            Outcome.TOO_LARGE,
            f"the prompt has about {num_tokens:,} tokens, and this key may send {limit:,} "
            "(max_prompt_tokens); send a shorter one",
            limit="max_prompt_tokens",
        )


def _down(model: ServedModel, now: float) -> Refusal:
    waits = [replica.breaker.retry_after_s(now) for replica in model.replicas]
    wait = max(1.0, min(waits, default=_RETRY_DOWN_S))
    return Refusal(
        Outcome.BACKEND_DOWN,
        f"no engine of {model.name} answers at the moment; try again in {wait:.0f} s",
        limit="backend",
        retry_after_s=wait,
    )


def _refusal_of(error: UpstreamError) -> Refusal:
    outcome = OUTCOMES[error.how]
    return Refusal(outcome, str(error), limit="backend", retry_after_s=_RETRY_DOWN_S)


def _judge(attempt: Attempt, forwarded: Forwarded, now: float) -> None:
    """What an answer says about the replica: nothing, if its client left or its key went."""
    match forwarded.how:
        case How.CLIENT_CANCELLED | How.STOPPED:
            pass
        case How.COMPLETED:
            attempt.succeeded()
        case _:
            attempt.failed(now)
