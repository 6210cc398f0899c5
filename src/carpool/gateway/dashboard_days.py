"""Usage by day for the dashboard. Days that are over are counted once an hour and kept: a month
of them is millions of rows, and a page that asks is not to wait for that."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_fields import NoQuery, read_query
from carpool.store.errors import StoreError
from carpool.store.group_by import GroupBy
from carpool.store.usage_store import DAY_S, UsageStore, UsageTotal, day_start

DAYS = 30
KEPT_S = 3600.0
"""Rows of days that are over may still come, from a gateway whose database was away."""
PATIENCE_S = 0.05


class DashboardDays:
    def __init__(self, usage: UsageStore, clock: Callable[[], float] = time.time) -> None:
        self._usage = usage
        self._clock = clock
        self._past: list[UsageTotal] = []
        self._counted_at: float | None = None
        self._counting: asyncio.Task[None] | None = None

    def routes(self) -> list[Route]:
        return [Route("/days", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        """`is_counting`: days that are over are not known yet."""
        read_query(request, NoQuery)
        now = self._clock()
        today = day_start(now)
        days = await asyncio.to_thread(self._usage.totals, GroupBy.DAY, today)
        if not self._is_counted(now):
            if self._counting is None:
                self._counting = asyncio.create_task(self._count(now))
            await asyncio.wait({self._counting}, timeout=PATIENCE_S)
        told = [asdict(day) for day in (*self._past, *days)]
        is_counting = self._counted_at is None or day_start(self._counted_at) != today
        return JSONResponse({"as_of": now, "days": told, "is_counting": is_counting})

    def _is_counted(self, now: float) -> bool:
        counted_at = self._counted_at
        if counted_at is None or day_start(now) != day_start(counted_at):
            return False
        return 0 <= now - counted_at < KEPT_S

    async def _count(self, now: float) -> None:
        today = day_start(now)
        try:
            with contextlib.suppress(StoreError):  # the next who asks tries again
                self._past = await asyncio.to_thread(
                    self._usage.totals, GroupBy.DAY, today - (DAYS - 1) * DAY_S, today
                )
                self._counted_at = now
        finally:
            self._counting = None
