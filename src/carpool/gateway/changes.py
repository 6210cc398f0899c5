"""Changes of people and keys by an admin: done in a thread, written into the log, and told."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request

from carpool.store.key_text import redact_keys

T = TypeVar("T")

_audit = logging.getLogger("carpool.audit")
_audit.setLevel(logging.INFO)


class Changes:
    """`on_change` is awaited after each of them."""

    def __init__(self, on_change: Callable[[], Awaitable[None]]) -> None:
        self._on_change = on_change

    async def make(
        self,
        request: Request,
        change: Callable[[], T],
        what: Callable[[T], str],
        fields: Mapping[str, Any] | None = None,
    ) -> T:
        """The result of `change`, of which `what` and the `fields` it was given are one line in
        the log, with the id of the admin key. Keys in them are made unreadable."""
        admin_key_id = request.scope["admin_key_id"]

        def audited() -> T:
            # In one go: a request that is dropped now is no change without its line.
            result = change()
            given = redact_keys(json.dumps(fields or {}))
            _audit.info("admin key %s: %s %s", admin_key_id, what(result), given)
            return result

        result = await asyncio.to_thread(audited)
        await self._on_change()
        return result
