"""A request's body is read whole, and no further than its bound."""

import asyncio

import pytest

from carpool.gateway.body import read_body
from carpool.gateway.client import ClientGone
from carpool.gateway.refusal import Refusal


def read(*parts, headers=None, max_bytes=10, is_cut=False):
    """The body that comes in `parts`, and how many were read."""
    messages = [
        {"type": "http.request", "body": part, "more_body": is_cut or n < len(parts) - 1}
        for n, part in enumerate(parts)
    ]
    messages.append({"type": "http.disconnect"})
    num_parts = len(messages)

    async def receive():
        return messages.pop(0)

    try:
        return asyncio.run(read_body(receive, headers or {}, max_bytes))
    finally:
        read.num_read = num_parts - len(messages)


@pytest.mark.parametrize("parts", [[b""], [b"0123456789"], [b"01234", b"", b"56789"]])
def test_a_body_within_the_bound_is_read_whole(parts):
    assert read(*parts) == b"".join(parts)


@pytest.mark.parametrize("parts", [[b"0123456789x"], [b"01234", b"56789", b"x", b"more"]])
def test_one_byte_more_is_too_large_and_no_more_is_read(parts):
    with pytest.raises(Refusal, match="at most 10") as caught:
        read(*parts)
    assert caught.value.status == 413
    assert read.num_read <= 3


def test_one_that_says_it_is_too_large_is_not_read_at_all():
    with pytest.raises(Refusal, match="11 bytes"):
        read(b"0123456789x", headers={b"content-length": b"11"})
    assert read.num_read == 0


def test_a_length_that_is_no_number_is_not_believed():
    assert read(b"abc", headers={b"content-length": b"-1"}) == b"abc"


@pytest.mark.parametrize("parts", [[], [b"half"]])
def test_who_leaves_half_way_is_gone(parts):
    with pytest.raises(ClientGone):
        read(*parts, is_cut=True)
