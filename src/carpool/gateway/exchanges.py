"""One request from its key to the end of its answer.

What it takes on the way (tokens of its limits, a place in the queue, a seat, a replica's load)
is held by `with` statements around the answer's body, and is back when the last of them ends,
however that comes.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from carpool.gateway.allowance import Allowance
from carpool.gateway.answer import Answer, Forwarded
from carpool.gateway.api_kind import ApiKind
from carpool.gateway.circuit_breaker import Attempt
from carpool.gateway.client import Client, ClientGone
from carpool.gateway.error_events import error_event
from carpool.gateway.exchange import OUTCOMES, Exchange
from carpool.gateway.forward import ModelRequest, Target, ask, left_before_answer
from carpool.gateway.gate import Gate, Seat
from carpool.gateway.headers import first_value, headers_for_others
from carpool.gateway.limit_counters import LimitReached, Reservation
from carpool.gateway.outcome import Outcome
from carpool.gateway.output_cap import (
    clamped,
    has_output,
    num_sequences,
    output_cap,
    under_one_name,
)
from carpool.gateway.refusal import RETRIED, Refusal, whole_seconds
from carpool.gateway.routing import PREFIX_BYTES, Replica, choose_replica
from carpool.gateway.served_model import ServedModel
from carpool.gateway.ticket import Ticket
from carpool.gateway.token_estimate import ExpectedOutput
from carpool.gateway.upstream_errors import ConnectFailed, How, OutOfService, UpstreamError

if TYPE_CHECKING:
    from carpool.gateway.books import Books

HEARTBEAT_S = 10.0

_log = logging.getLogger(__name__)

_OUT_OF_SERVICE = Outcome.UPSTREAM_ERROR
_GATEWAY_ERRORS = (502, 503, 504)
_BAD_CREDENTIALS = 401
_BROKEN_REQUEST = 500
_RETRY_DOWN_S = 2
# Who goes first is decided here, and an engine would believe the client.
_NOT_THE_CLIENTS = ("priority",)


class Exchanges:
    """Serves exchanges; owns what they share beyond the model: histories, running answers."""

    def __init__(self, books: "Books") -> None:
        self._books = books
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

    async def serve(self, exchange: Exchange, allowance: Allowance, client: Client) -> None:
        """Answer `client`. Raises Refusal while nothing has been sent to it, and ClientGone."""
        key_id = exchange.caller.key.key_id
        running = self._running[key_id]
        running[exchange] = client
        try:
            await self._serve(exchange, allowance, client)
        finally:
            del running[exchange]
            if not running:
                self._running.pop(key_id, None)

    async def _serve(self, exchange: Exchange, allowance: Allowance, client: Client) -> None:
        model, person_id = exchange.model, exchange.caller.person.person_id
        num_prompt = model.bytes_per_token.prompt_tokens(len(exchange.body.raw))
        exchange.prompt_estimate = num_prompt
        allowance.check_prompt(num_prompt)
        exchange.changes = clamped(exchange.kind, exchange.fields, allowance.max_output_tokens)
        fields = exchange.fields
        if exchange.changes:
            fields = {**fields, **exchange.changes}
        cap = output_cap(exchange.kind, fields)
        num_seqs = num_sequences(exchange.kind, exchange.fields)
        num_output = 0
        if has_output(exchange.kind):
            num_output = num_seqs * self._expected.tokens(person_id, cap)
        caps = allowance.in_flight_caps
        ticket = Ticket(
            request_id=exchange.request_id,
            person_id=person_id,
            num_prompt_tokens=num_prompt,
            num_output_tokens=num_output,
            num_seqs=num_seqs,
            weight=exchange.caller.person.weight,
            lane=exchange.caller.key.lane,
            key_id=exchange.caller.key.key_id,
            max_in_flight=caps.key,
            person_max_in_flight=caps.person,
            model_max_in_flight=caps.model,
            can_hold=model.can_hold(exchange.is_private),
        )
        with await _reserved(allowance, num_prompt + num_output, exchange) as reservation:
            forwarded = await self._answer(exchange, ticket, client)
            usage = forwarded.usage
            reservation.settle(usage.prompt_tokens + usage.output_tokens)
            if usage.source == "reported" and forwarded.status < 400:
                model.bytes_per_token.learn(len(exchange.body.raw), usage.prompt_tokens)
                if has_output(exchange.kind):
                    self._expected.learn(person_id, usage.output_tokens // num_seqs)

    async def _answer(self, exchange: Exchange, ticket: Ticket, client: Client) -> Forwarded:
        """By an engine of ours or, where that is allowed and nothing has come from one, by the
        fallback."""
        try:
            try:
                return await self._by_engine(exchange, ticket, client)
            except ConnectFailed:
                # Nothing was sent: the one thing that is tried again, once.
                return await self._by_engine(exchange, ticket, client)
        except (Refusal, UpstreamError) as error:
            refusal = (
                error if isinstance(error, Refusal) else _refusal_of(error, exchange.model.gate)
            )
            if not exchange.may_fall_back(refusal.outcome):
                raise refusal from error
            return await self._by_fallback(exchange, refusal, client)

    async def _by_engine(self, exchange: Exchange, ticket: Ticket, client: Client) -> Forwarded:
        """Raises Refusal and UpstreamError while no byte of an answer was sent."""
        model = exchange.model
        if not ticket.can_hold and (refusal := model.away()) is not None:
            raise refusal
        with model.gate.enter(ticket) as seat:
            exchange.position = ticket.position
            await self._wait(exchange, seat, client)
            exchange.position = ticket.position
            now = asyncio.get_running_loop().time()
            replica = choose_replica(model.replicas, exchange.body.raw[:PREFIX_BYTES], now)
            if replica is None:
                raise _down(model, now)
            try:
                forwarded = await self._send(exchange, replica, client)
            except ConnectFailed as error:
                replica.on_not_reached(str(error))
                raise
            seat.used(forwarded.usage.prompt_tokens, forwarded.usage.output_tokens)
            return forwarded

    async def _by_fallback(self, exchange: Exchange, refusal: Refusal, client: Client) -> Forwarded:
        """Raises `refusal`, why no engine of ours has answered, if the fallback does not."""
        fallback, now = exchange.model.fallback, asyncio.get_running_loop().time()
        if fallback is None or not fallback.can_take(now) or fallback.load >= 1:
            raise refusal
        try:
            return await self._send(exchange, fallback, client)
        except UpstreamError as error:
            _log.warning("%s did not answer either: %s", fallback.name, error)
            raise refusal from error

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
        seconds = loop.time() - entered
        exchange.queue_s += seconds
        self._books.queued(exchange, seconds)

    async def _send(self, exchange: Exchange, replica: Replica, client: Client) -> Forwarded:
        """Raises UpstreamError while no byte of an answer was sent."""
        exchange.replica = replica
        request, target = _request(exchange, replica), _target(exchange, replica)
        loop = asyncio.get_running_loop()
        with replica.loaded(loop.time()) as attempt:
            try:
                with client.interrupting():
                    answer = await ask(request, target)
                _check_status(exchange, replica, answer)
                exchange.answer = answer
                more = _retry_after(answer, exchange.model.gate)
                forwarded = await answer.relay(client, [*exchange.answer_headers(), *more])
            except UpstreamError as error:
                attempt.failed(loop.time())
                if exchange.trace is not None:
                    exchange.trace.answered(0, error.how.value)
                raise
            except ClientGone:
                forwarded = left_before_answer(request, target)
            finally:
                exchange.answer = None
            _judge(attempt, forwarded, loop.time())
        exchange.take(forwarded)
        return forwarded


async def _reserved(allowance: Allowance, num_tokens: int, exchange: Exchange) -> Reservation:
    """A request and its tokens, of all limits that hold for it. Raises LimitReached."""
    try:
        reservation = await allowance.reserve(num_tokens)
    except LimitReached as refusal:
        exchange.rate_headers = refusal.rate_headers
        raise
    exchange.rate_headers = reservation.rate_headers
    return reservation


def _stop(running: Mapping[Exchange, Client], refusal: Refusal) -> None:
    """Wherever they are: a stream that has begun gets an error event, others the refusal. Who
    does not read what they are sent is left without a word."""
    for exchange, client in list(running.items()):
        exchange.stopped_by = refusal.outcome
        if exchange.answer is not None:
            exchange.answer.stop(refusal.message)
            if client.is_behind:
                client.interrupt(ClientGone())
        else:
            client.interrupt(refusal)


def _check_status(exchange: Exchange, replica: Replica, answer: Answer) -> None:
    """Raises UpstreamError for what is not to reach the client: what somebody else can answer,
    and complaints about the gateway's own key, which clients would take for theirs."""
    if answer.status == _BAD_CREDENTIALS:
        _log.error("%s does not take the key that it is sent (401)", replica.name)
        message = "the engine does not take the gateway's key; whoever runs the gateway can help"
        error = UpstreamError(message)
    elif answer.status in _GATEWAY_ERRORS and exchange.may_fall_back(_OUT_OF_SERVICE):
        error = OutOfService(answer.status, first_value(answer.headers, b"retry-after"))
    else:
        return
    answer.close()
    raise error


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
        code = refusal.outcome.value
        await client.finish(error_event(kind, refusal.message, code=code, status=refusal.status))
        return
    body = refusal.body()
    length = (b"content-length", b"%d" % len(body))
    await client.start(refusal.status, [*refusal.headers(), length, *headers])
    await client.finish(body)


def _down(model: ServedModel, now: float) -> Refusal:
    waits = [replica.breaker.retry_after_s(now) for replica in model.replicas]
    wait = max(1.0, min(waits, default=_RETRY_DOWN_S))
    return Refusal(
        Outcome.BACKEND_DOWN,
        f"no engine of {model.name} answers at the moment; try again in {whole_seconds(wait)} s",
        limit="backend",
        retry_after_s=wait,
    )


def _request(exchange: Exchange, replica: Replica) -> ModelRequest:
    changes: dict[str, Any] = exchange.changes
    removals: tuple[str, ...] = _NOT_THE_CLIENTS
    if replica.quirks.max_tokens_name is not None:
        renamed, gone = under_one_name(
            exchange.kind, {**exchange.fields, **changes}, replica.quirks.max_tokens_name
        )
        changes, removals = {**changes, **renamed}, (*removals, *gone)
    headers = exchange.raw_headers
    if exchange.trace is not None:
        headers = exchange.trace.sent(replica, headers)
    if exchange.is_fallback:
        headers = headers_for_others(headers)
    return ModelRequest(
        kind=exchange.kind,
        path=exchange.path,
        headers=headers,
        body=exchange.body,
        model=exchange.asked_name,
        prompt_estimate=exchange.prompt_estimate,
        changes=changes,
        removals=removals,
    )


def _target(exchange: Exchange, replica: Replica) -> Target:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if replica.quirks.person_header is not None:
        person_id = exchange.caller.person.person_id
        headers = ((replica.quirks.person_header.encode(), person_id.encode()),)
    return Target(
        upstream=replica.upstream,
        model=replica.model,
        key=replica.api_key,
        timeouts=replica.timeouts,
        has_stream_usage=replica.quirks.has_stream_usage,
        headers=headers,
    )


def _refusal_of(error: UpstreamError, gate: Gate) -> Refusal:
    """An engine that is busy stays so: its 503 is the gateway's, with a time to try again."""
    outcome, wait_s = OUTCOMES[error.how], float(_RETRY_DOWN_S)
    if isinstance(error, OutOfService) and error.status in RETRIED:
        outcome = Outcome.BACKEND_DOWN
        told = error.retry_after or b""
        wait_s = float(told) if told.isdigit() else gate.admission.seconds_until(1)
    return Refusal(outcome, str(error), limit="backend", retry_after_s=wait_s)


def _judge(attempt: Attempt, forwarded: Forwarded, now: float) -> None:
    """What an answer says about the replica: nothing, if its client left or its key went. Nor
    does a whole 500: it may be this request that the engine cannot do, and one person's
    requests are not to keep everybody else from it."""
    match forwarded.how:
        case How.CLIENT_CANCELLED | How.STOPPED:
            pass
        case How.UPSTREAM_ERROR if forwarded.status == _BROKEN_REQUEST:
            pass
        case How.COMPLETED:
            attempt.succeeded()
        case _:
            attempt.failed(now)
