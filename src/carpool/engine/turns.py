"""A place that one at a time may have; persons take turns for it."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Whoever asks often waits for himself, and nobody else does."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def num_waiting(self) -> int:
        return sum(not place.done() for places in self._waiting.values() for place in places)

    @asynccontextmanager
    async def turn(self, person_id: str) -> AsyncIterator[None]:
        if self._is_taken:
            await self._wait(person_id)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, person_id: str) -> None:
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(person_id, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self._pass_on()  # it was this one's turn already
            raise

    def _pass_on(self) -> None:
        """To the next person, whose others then wait behind everybody."""
        while self._waiting:
            person_id = next(iter(self._waiting))
            places = self._waiting.pop(person_id)
            while places and places[0].done():  # gone meanwhile
                places.popleft()
            if not places:
                continue
            places.popleft().set_result(None)
            if places:
                self._waiting[person_id] = places
            return
        self._is_taken = False
