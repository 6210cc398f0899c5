"""Bytes are timed by the kernel, not by when a busy process came to read them."""

import asyncio
import socket
import sys
import time

import pytest

from carpool.backends.address import Address
from carpool.bench.loop import run
from carpool.bench.stamped_socket import connect, is_stamped

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux stamps TCP data")


class Receiver:
    def __init__(self) -> None:
        self.pieces: list[tuple[bytes, float]] = []
        self.changed = asyncio.Event()
        self.is_lost = False

    def received(self, data: bytes, now: float) -> None:
        self.pieces.append((data, now))
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.changed.set()


async def pair() -> tuple[Receiver, "socket.socket", object]:
    receiver = Receiver()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        connection = await connect(asyncio.get_running_loop(), "127.0.0.1", port, receiver)
        peer, _ = listener.accept()
    return receiver, peer, connection


async def changed(receiver: Receiver) -> None:
    async with asyncio.timeout(10):
        await receiver.changed.wait()
    receiver.changed.clear()


def send_while_the_loop_is_busy(peer: socket.socket) -> tuple[float, float]:
    """When it was sent, and when the loop went on."""
    peer.send(b"first")
    sent = time.monotonic()
    time.sleep(0.3)
    return sent, time.monotonic()


def test_bytes_that_are_read_late_have_the_time_they_came():
    async def late() -> tuple[float, float, float]:
        receiver, peer, connection = await pair()
        with peer:
            # The kernel begins to stamp a moment after it was first asked to.
            while True:
                sent, read = send_while_the_loop_is_busy(peer)
                await changed(receiver)
                _, now = receiver.pieces.pop()
                if now < read:
                    connection.abort()
                    return sent, now, read

    sent, now, read = run(late())
    assert now - sent < 0.15
    assert read - now > 0.15


def test_a_large_request_goes_out_whole_to_a_slow_reader():
    async def send() -> int:
        _, peer, connection = await pair()
        with peer:
            connection.write(b"x" * 8_000_000)
            connection.write(b"end")
            reading = asyncio.to_thread(read_all, peer)
            data = await reading
            connection.abort()
            return data

    def read_all(peer: socket.socket) -> int:
        count = 0
        while count < 8_000_003 and (data := peer.recv(100_000)):
            count += len(data)
        return count

    assert run(send()) == 8_000_003


def test_the_end_of_a_connection_is_told_once():
    async def end() -> bool:
        receiver, peer, connection = await pair()
        peer.close()
        await changed(receiver)
        connection.abort()
        return receiver.is_lost and connection.is_closing()

    assert run(end())


def test_what_cannot_be_stamped():
    assert is_stamped(Address.from_url("http://localhost:8000"))
    assert not is_stamped(Address.from_url("https://localhost"))
    assert not is_stamped(Address.from_url("unix:///tmp/socket"))
