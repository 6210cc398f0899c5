"""Fixtures for the gateway's tests: a clock-bounded loop, and a client as ASGI shows one.

`mock_engine` (the module next to this one) is on the path of the tests.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


class FakeClient:
    """The two callables of ASGI; `go` closes the connection, `is_slow` stops taking bytes."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.pieces: list[bytes] = []
        self.is_finished = False
        self.on_piece: Callable[[bytes], None] = lambda piece: None
        self.can_take = asyncio.Event()
        self.can_take.set()
        self._gone = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def go(self) -> None:
        self._gone.set()

    async def receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            assert self.status is None
            self.status = message["status"]
            headers = list(message["headers"])
            self.headers = {name.decode(): value.decode() for name, value in headers}
            assert len(self.headers) == len(headers)
            return
        assert self.status is not None
        assert not self.is_finished
        await self.can_take.wait()
        if message["body"]:
            self.pieces.append(message["body"])
            self.on_piece(message["body"])
        self.is_finished = not message["more_body"]


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a scenario to its end, or fails it after 20 s."""
    return lambda scenario: asyncio.run(asyncio.wait_for(scenario, 20))


@pytest.fixture
def new_client() -> Callable[[], FakeClient]:
    return FakeClient
