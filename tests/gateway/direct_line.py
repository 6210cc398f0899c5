"""A line to a real Redis without a loop of its own: every letter is answered at once."""

import os
import secrets
from collections.abc import Callable
from typing import Any

import pytest
import redis

from carpool.gateway.redis_link import LUA

URL = os.environ.get("CARPOOL_TEST_REDIS", "")
needs_redis = pytest.mark.skipif(not URL, reason="no CARPOOL_TEST_REDIS")


class DirectLine:
    """Stands in for RedisLink; `now` is the time the scripts are told. `is_away`, settable,
    answers nobody."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.is_away = False
        self.prefix = f"{{test-{secrets.token_hex(6)}}}:"
        self._now = now
        self._redis = redis.Redis.from_url(URL, decode_responses=True)
        self._scripts: list[tuple[Any, Any]] = []
        self._is_busy = False

    def add(self, correspondent: Any) -> None:
        script = self._redis.register_script((LUA / correspondent.script).read_text())
        self._scripts.append((correspondent, script))

    def wake(self) -> None:
        if self._is_busy or self.is_away:
            return
        self._is_busy = True
        try:
            self.exchange()
        finally:
            self._is_busy = False

    def exchange(self) -> None:
        for correspondent, script in self._scripts:
            while (letter := correspondent.outgoing()) is not None:
                correspondent.incoming(self.ask(script, letter))

    def ask(self, script: Any, letter: str) -> str:
        return script(keys=[self.prefix], args=[letter, repr(self._now())])

    def close(self) -> None:
        keys = list(self._redis.scan_iter(f"{self.prefix}*"))
        if keys:
            self._redis.delete(*keys)
        self._redis.close()
