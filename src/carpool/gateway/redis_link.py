"""A worker's line to the Redis, or Valkey, in which workers and gateways share their counters.

One loop writes and reads it, a round trip at a time: what comes up meanwhile goes with the next
one. While the server does not answer, everybody is told once, and the loop asks until it does.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from carpool.errors import CarpoolError

PREFIX = "carpool:1:"
"""Of every key. The number is that of their form: who writes another takes the next."""
TURN_S = 0.4
"""Between letters when there is nothing to say: leases are renewed by them."""
RETRY_S = 0.4
TIMEOUT_S = 2.0
_SCHEMES = ("redis", "rediss", "unix", "valkey", "valkeys")
LUA = Path(__file__).parent / "lua"

_log = logging.getLogger(__name__)


class CountersError(CarpoolError):
    """What is to hold the shared counters cannot be used."""


class CountersAway(Exception):
    """The server did not answer; what was asked may have happened, or not."""


class Correspondent(Protocol):
    """Somebody who writes to a script in the server. All of this is called in the loop."""

    script: str
    """The name of a file in `lua/`."""

    def outgoing(self) -> str | None:
        """The next letter, as JSON; None if there is nothing to say."""
        ...

    def incoming(self, reply: str) -> None:
        """The answer to the last letter."""
        ...

    def lost(self, error: CountersAway) -> None:
        """There will be no answer to it. Also when the server goes away without a letter."""
        ...

    def last(self) -> str | None:
        """What is left to say when this worker ends."""
        ...


class RedisLink:
    """`run` is its loop. Until that has reached the server, it `is_away`."""

    def __init__(self, url: str) -> None:
        """Raises CountersError for a missing package, or a URL that cannot be right."""
        self._redis = _client(url)
        self._correspondents: list[Correspondent] = []
        self._shas: list[str] = []
        self._has_news = asyncio.Event()
        self._was_told = False
        self.is_away = True

    def add(self, correspondent: Correspondent) -> None:
        self._correspondents.append(correspondent)

    def wake(self) -> None:
        """Somebody has something to say."""
        self._has_news.set()

    async def run(self, channel: str) -> None:
        """Until cancelled; then says what is left to say. What others publish on `channel` wakes
        this one."""
        listening = asyncio.create_task(self._listen(channel))
        try:
            while True:
                if self.is_away and not await self._is_back():
                    await asyncio.sleep(RETRY_S)
                    continue
                await self._exchange(lambda each: each.outgoing())
                await self._wait()
        finally:
            listening.cancel()
            if not self.is_away:
                await self._exchange(lambda each: each.last())
            self._tell_lost()
            await self._redis.aclose()

    async def _wait(self) -> None:
        timer = asyncio.get_running_loop().call_later(TURN_S, self._has_news.set)
        await self._has_news.wait()
        timer.cancel()
        self._has_news.clear()

    async def _exchange(self, letter: Callable[[Correspondent], str | None]) -> None:
        letters = [
            (each, sha, text)
            for each, sha in zip(self._correspondents, self._shas, strict=True)
            if (text := letter(each)) is not None
        ]
        if not letters:
            return
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for _, sha, text in letters:
                    pipeline.evalsha(sha, 1, PREFIX, text, "")
                replies = await pipeline.execute()
        except _failures() as error:
            self._lose(error)
            return
        if self._was_told:
            _log.warning("the shared counters are back")
            self._was_told = False
        for (correspondent, _, _), reply in zip(letters, replies, strict=True):
            correspondent.incoming(reply)

    async def _is_back(self) -> bool:
        """Asks, and leaves the scripts there: a server that was started anew has none."""
        try:
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            scripts = [(LUA / each.script).read_text() for each in self._correspondents]
            self._shas = [str(await self._redis.script_load(script)) for script in scripts]
        except _failures() as error:
            self._lose(error)
            return False
        self.is_away = False
        return True

    def _lose(self, error: Exception) -> None:
        if not self._was_told:
            _log.warning(
                "the shared counters are away (%s); until they are back this worker keeps to its "
                "own share of limits and seats",
                _one_line(error),
            )
        self._was_told = True
        self._tell_lost()

    def _tell_lost(self) -> None:
        self.is_away = True
        for correspondent in self._correspondents:
            correspondent.lost(CountersAway())

    async def _listen(self, channel: str) -> None:
        """A message that is lost costs a turn."""
        while True:
            try:
                async with self._redis.pubsub(ignore_subscribe_messages=True) as pubsub:
                    await pubsub.subscribe(channel)
                    while True:
                        if await pubsub.get_message(timeout=None) is not None:
                            self._on_call()
            except _failures():
                await asyncio.sleep(RETRY_S)

    def _on_call(self) -> None:
        for correspondent in self._correspondents:
            if isinstance(correspondent, Called):
                correspondent.on_call()
        self.wake()


class Called:
    """A correspondent whom others call: there is something to hear."""

    def on_call(self) -> None:
        raise NotImplementedError


def check_counters(url: str) -> None:
    """Raises CountersError, in one line that says what to do, unless the server answers."""
    client = _client(url, is_async=False)
    try:
        client.ping()
    except _failures() as error:
        raise CountersError(
            f"the shared counters at {_shown(url)} cannot be reached: {_one_line(error)}; start "
            "a Redis or Valkey there, or give another --counters"
        ) from None
    finally:
        client.close()


def _client(url: str, *, is_async: bool = True) -> Any:
    try:
        import redis
        import redis.asyncio
        from redis.asyncio.retry import Retry as AsyncRetry
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ModuleNotFoundError:
        raise CountersError(
            "--counters needs the Redis client, which is not there: pip install 'carpool[redis]'"
        ) from None
    scheme = url.partition("://")[0]
    if scheme not in _SCHEMES or "://" not in url:
        raise CountersError(
            "--counters is no address of a Redis; write redis://HOST:PORT/DB (rediss for TLS)"
        )
    options: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        # Whether a call was carried out is not known when its answer is lost: nothing is retried
        # but by those who can tell.
        "retry": (AsyncRetry if is_async else Retry)(NoBackoff(), 0),
    }
    made = redis.asyncio.Redis if is_async else redis.Redis
    try:
        return made.from_url(url.replace("valkey", "redis", 1), **options)
    except ValueError:
        raise CountersError(
            "--counters is no address of a Redis; write redis://HOST:PORT/DB, with a number for "
            "the port and for the database"
        ) from None


def _failures() -> tuple[type[Exception], ...]:
    """Of the line, or of the server."""
    from redis.exceptions import RedisError

    return RedisError, OSError


def _shown(url: str) -> str:
    """Without what may be a secret."""
    parts = urlsplit(url)
    where = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{where}{parts.path}"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
