"""What waits to be delivered: in order, tried again, bounded; and that nobody waits for it."""

import logging
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.watch.alert import Alert, AlertState, Change, ChangeKind
from carpool.watch.courier import Courier, DeliveryFailed, DeliveryRefused
from carpool.watch.notice import MAX_CHANGES, Notice, lines, plain, title
from carpool.watch.outbox import (
    FIRST_RETRY_S,
    MAX_AGE_S,
    MAX_RETRY_S,
    MAX_WAITING,
    DestinationState,
    Outbox,
)
from carpool.watch.severity import Severity

PATIENCE_S = 20.0


def change(severity: Severity = Severity.WARNING, kind: ChangeKind = ChangeKind.FIRING, **fields):
    options = {
        "rule": "ttft_climb",
        "severity": severity,
        "model": "m",
        "subject": None,
        "summary": "slow",
        "remedies": ("one", "two", "three", "four"),
        "state": AlertState.FIRING,
        "since": 0.0,
    }
    return Change(kind, Alert(**options | fields))


def notice(*changes: Change) -> Notice:
    return Notice(changes or (change(),), 0.0)


def test_messages_go_in_order():
    outbox, first, second = Outbox(), notice(), notice()
    outbox.put(first, 0)
    outbox.put(second, 0)
    assert outbox.first(0) is first
    outbox.delivered(first, 1)
    assert outbox.first(1) is second
    outbox.delivered(second, 2)
    assert outbox.first(2) is None
    assert outbox.next_try() is None
    assert outbox.status().last_delivered_at == 2


def test_pauses_between_tries_double_up_to_a_limit():
    outbox, only = Outbox(), notice()
    outbox.put(only, 0)
    now, pauses = 0.0, []
    for _ in range(10):
        assert outbox.first(now) is only
        outbox.failed("no", now)
        assert outbox.first(now) is None
        pauses.append(outbox.next_try() - now)
        now = outbox.next_try()
    assert pauses[:3] == [FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert pauses[-1] == MAX_RETRY_S


def test_a_server_may_ask_for_a_longer_pause():
    outbox = Outbox()
    outbox.put(notice(), 0)
    outbox.failed("busy", 0, retry_after_s=1000)
    assert outbox.next_try() == 1000


def test_what_is_refused_goes_and_the_next_is_tried():
    outbox, bad, good = Outbox(), notice(), notice()
    outbox.put(bad, 0)
    outbox.put(good, 0)
    outbox.failed("no", 0)
    outbox.refused(bad, "never")
    assert outbox.first(0) is good
    assert outbox.status().failed == 1
    assert outbox.status().last_error == "never"


def test_what_is_too_old_is_no_news():
    outbox, fresh = Outbox(), notice()
    outbox.put(notice(), 0)
    outbox.put(fresh, MAX_AGE_S)
    assert outbox.first(MAX_AGE_S + 1) is fresh
    assert outbox.status().failed == 1


def test_the_oldest_makes_room_and_its_end_counts_once():
    outbox, first = Outbox(), notice()
    outbox.put(first, 0)
    assert outbox.first(0) is first
    for _ in range(MAX_WAITING):
        outbox.put(notice(), 0)
    outbox.delivered(first, 1)
    status = outbox.status()
    assert (status.waiting, status.dropped, status.delivered) == (MAX_WAITING, 1, 1)


def test_only_the_first_failure_and_the_first_success_are_news():
    outbox = Outbox()
    assert outbox.status().state is DestinationState.IDLE
    for _ in range(3):
        outbox.put(notice(), 0)
    assert outbox.failed("no", 0)
    assert not outbox.failed("no", 0)
    assert not outbox.refused(outbox.first(100), "no")
    assert outbox.status().state is DestinationState.FAILING
    assert outbox.delivered(outbox.first(100), 100)
    assert not outbox.delivered(outbox.first(100), 100)
    assert outbox.status().state is DestinationState.OK
    assert outbox.status().last_error is None


# ---------------------------------------------------------------------- the thread


def until(is_so) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.001)


class Gate:
    """A destination that waits in `send` until it is let go, and then does what is next."""

    name, kind = "team", "test"

    def __init__(self, *outcomes: Exception | None, min_severity=Severity.INFO) -> None:
        self.outcomes = list(outcomes)
        self.min_severity = min_severity
        self.sent: list[Notice] = []
        self.entered = threading.Semaphore(0)
        self.released = threading.Semaphore(0)

    def send(self, sent: Notice) -> None:
        self.entered.release()
        assert self.released.acquire(timeout=PATIENCE_S)
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.sent.append(sent)

    def let_go(self, number: int = 1) -> None:
        for _ in range(number):
            assert self.entered.acquire(timeout=PATIENCE_S)
            self.released.release()


def test_whoever_has_news_does_not_wait_for_a_destination_that_hangs():
    gate = Gate()
    courier = Courier(gate)
    courier.start()
    courier.put(notice())
    assert gate.entered.acquire(timeout=PATIENCE_S)
    for _ in range(999):
        courier.put(notice())
    assert courier.status().outbox.waiting == MAX_WAITING
    assert courier.status().outbox.dropped == 1000 - MAX_WAITING
    gate.released.release()
    gate.let_go(MAX_WAITING)
    courier.stop(PATIENCE_S)
    assert courier.status().outbox.waiting == 0


def test_a_failure_is_seen_and_tried_again(caplog):
    caplog.set_level(logging.WARNING)
    clock = [0.0]
    gate = Gate(DeliveryFailed("host is away"), None)
    courier = Courier(gate, lambda: clock[0])
    courier.start()
    courier.put(notice())
    gate.let_go()
    until(lambda: courier.status().outbox.state is DestinationState.FAILING)
    status = courier.status()
    assert (status.name, status.outbox.last_error) == ("team", "host is away")
    clock[0] = FIRST_RETRY_S
    courier.put(notice())  # wakes it: its clock is not the real one
    gate.let_go(2)
    courier.stop(PATIENCE_S)
    assert len(gate.sent) == 2
    texts = [record.getMessage() for record in caplog.records]
    assert texts == [
        "alerts cannot be delivered to team: host is away",
        "alerts are delivered to team again",
    ]


def test_what_is_refused_is_not_tried_again():
    gate = Gate(DeliveryRefused("404"), None)
    courier = Courier(gate)
    courier.start()
    courier.put(notice())
    courier.put(notice())
    gate.let_go(2)
    courier.stop(PATIENCE_S)
    assert len(gate.sent) == 1
    assert courier.status().outbox.failed == 1


def test_what_a_stop_leaves_behind_is_said(caplog):
    gate = Gate()
    courier = Courier(gate)
    courier.start()
    courier.put(notice())
    courier.put(notice())
    assert gate.entered.acquire(timeout=PATIENCE_S)
    courier.stop(0.0)
    gate.released.release()
    assert "messages about alerts that were not delivered to team: 2" in caplog.text


def test_a_destination_gets_what_is_bad_enough_for_it():
    gate = Gate(min_severity=Severity.CRITICAL)
    courier = Courier(gate)
    courier.start()
    courier.put(notice(change(Severity.WARNING)))
    courier.put(notice(change(Severity.WARNING), change(Severity.CRITICAL)))
    gate.let_go()
    courier.stop(PATIENCE_S)
    (sent,) = gate.sent
    assert [each.alert.severity for each in sent.changes] == [Severity.CRITICAL]


# ---------------------------------------------------------------------- its text


def test_a_message_says_what_and_then_what_to_do():
    text = lines(notice(change(subject="Ana")))
    assert text == ["[warning] firing: ttft climb (m, Ana): slow", "- one", "- two", "- three"]
    assert title(notice(change(subject="Ana"))) == "Carpool: firing: ttft climb (m, Ana)"


def test_what_is_over_needs_no_remedy():
    over = change(kind=ChangeKind.RESOLVED)
    assert lines(notice(over)) == ["[warning] resolved: ttft climb (m): slow"]
    assert title(notice(over, change())) == "Carpool: 1 firing, 1 resolved"


def test_many_at_once_are_one_message_of_a_bounded_size():
    many = notice(*(change(model=f"m{n}") for n in range(500)))
    assert len(lines(many)) == 4 * MAX_CHANGES + 1
    assert lines(many)[-1].startswith("and 490 more")
    assert title(many) == "Carpool: 500 firing"


@given(st.text(st.characters(codec=None), max_size=2000))
def test_any_text_becomes_one_plain_line(text):
    line = plain(text)
    assert len(line) <= 400
    assert line.replace("\u200d", "").isprintable()


@pytest.mark.parametrize("text", ["Zoë 李雷 O'Brien", "👩‍💻 ❤️", "a <b> & c"])
def test_what_people_write_stays(text):
    assert plain(text) == text
