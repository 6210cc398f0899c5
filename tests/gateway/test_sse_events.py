import pytest
from hypothesis import given
from hypothesis import strategies as st

from carpool.gateway import sse_events
from carpool.gateway.sse_events import EventSplitter, data_of, is_event
from carpool.gateway.upstream_errors import Malformed

parts = st.sampled_from(
    [b"data: x\n\n", b"data: x\r\n\r\n", b": ping\n", b": ping\r\n\r\n", b"\n", b"\r\n",
     "event: e\ndata: 🚗\n\n".encode(), b"id: 1\ndata: a\ndata: b\n\n", b"id: 1\n: c\ndata: d\n\n"]
)  # fmt: skip


def split(data: bytes, size: int) -> tuple[list[bytes], bytes]:
    splitter = EventSplitter()
    pieces = [
        piece for at in range(0, len(data), size) for piece in splitter.feed(data[at : at + size])
    ]
    return pieces, splitter.rest


@given(st.lists(parts), st.integers(1, 40))
def test_how_the_bytes_are_cut_makes_no_difference(stream, size):
    data = b"".join(stream)

    pieces, rest = split(data, size)

    assert b"".join(pieces) + rest == data
    assert [p for p in pieces if is_event(p)] == [p for p in stream if is_event(p)]


def test_an_event_is_held_until_it_is_whole():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1") == []
    assert splitter.feed(b"\n") == []
    assert splitter.feed(b"\ndata: 2\n\nda") == [b"data: 1\n\n", b"data: 2\n\n"]
    assert splitter.rest == b"da"


def test_a_comment_between_events_goes_at_once():
    splitter = EventSplitter()
    assert splitter.feed(b"data: 1\n\n: ping\n") == [b"data: 1\n\n", b": ping\n"]
    assert splitter.feed(b"\ndata: 2\n\n") == [b"\n", b"data: 2\n\n"]


def test_an_event_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(sse_events, "MAX_EVENT_BYTES", 100)
    splitter = EventSplitter()
    for _ in range(11):
        splitter.feed(b"data: 123")
    with pytest.raises(Malformed):
        splitter.feed(b"data: 123")


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b"data: {}\n\n", b"{}"),
        (b"data:{}\r\n\r\n", b"{}"),
        (b"event: e\ndata: a\ndata:  b\n\n", b"a\n b"),
        (b"event: e\n\n", b""),
        (b": data: no\ndata: yes\n\n", b"yes"),
    ],
)
def test_the_data_of_an_event(event, data):
    assert data_of(event) == data
