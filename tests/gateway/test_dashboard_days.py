"""Usage by day, without waiting for days that are over."""

import asyncio
import json
import threading

from starlette.requests import Request

from carpool.gateway.dashboard_days import KEPT_S, DashboardDays
from carpool.store.errors import DatabaseAway
from carpool.store.usage_store import DAY_S, UsageTotal

NOON = 20_000 * DAY_S + DAY_S / 2
ASKED = Request({"type": "http", "method": "GET", "query_string": b"", "headers": []})


class Ledger:
    """Today at once; days that are over when it is `released`."""

    def __init__(self):
        self.released = threading.Event()
        self.num_counts = 0
        self.is_away = False

    def totals(self, by, since, until=None):
        if until is None:
            return [_total("today")]
        self.num_counts += 1
        assert self.released.wait(10)
        if self.is_away:
            raise DatabaseAway("no connection")
        return [_total("before")]


def _total(day):
    return UsageTotal(day, day, 1, 0, 10, 0, 5, None, None)


async def ask(days):
    told = json.loads((await days.show(ASKED)).body)
    return [day["group_id"] for day in told["days"]], told["is_counting"]


async def settled(days, wanted):
    async with asyncio.timeout(10):
        while await ask(days) != wanted:
            pass


def test_today_is_told_while_other_days_are_counted_once(run):
    async def scenario():
        ledger = Ledger()
        now = [NOON]
        days = DashboardDays(ledger, lambda: now[0])
        assert await ask(days) == (["today"], True)
        assert await ask(days) == (["today"], True)
        ledger.released.set()
        await settled(days, (["before", "today"], False))
        assert ledger.num_counts == 1
        now[0] += KEPT_S - 1
        await ask(days)
        assert ledger.num_counts == 1
        now[0] += 2
        assert await ask(days) == (["before", "today"], False)
        async with asyncio.timeout(10):
            while ledger.num_counts < 2:
                await asyncio.sleep(0)

    run(scenario())


def test_a_count_that_fails_is_tried_again(run):
    async def scenario():
        ledger = Ledger()
        ledger.is_away = True
        ledger.released.set()
        days = DashboardDays(ledger, lambda: NOON)
        await settled(days, (["today"], True))
        ledger.is_away = False
        await settled(days, (["before", "today"], False))

    run(scenario())
