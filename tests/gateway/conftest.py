"""Fixtures for the gateway's tests: a clock-bounded loop, and a client as ASGI shows one.

`mock_engine` (the module next to this one) is on the path of the tests.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from carpool.store.key import Key
from carpool.store.lane import Lane
from carpool.store.limits import Limits


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


@pytest.fixture
def make_key() -> Callable[..., Key]:
    """A key of Ana's; limits by name, and `key` fields as a dict."""

    def make(key: dict[str, Any] | None = None, **limits: int) -> Key:
        fields: dict[str, Any] = {
            "key_id": "anakey",
            "secret_sha256": b"",
            "person_id": "ana",
            "name": "laptop",
            "models": None,
            "lane": Lane.INTERACTIVE,
            "is_private": False,
            "created_at": 0.0,
            "expires_at": None,
            "revoked_at": None,
            "record_until": None,
        }
        return Key(limits=Limits(**limits), **fields | (key or {}))

    return make
