"""What a person may know with their key alone: their limits, what they used, where they stand."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from carpool.gateway.key_ring import Caller
from carpool.gateway.live_state import Place
from carpool.gateway.served_model import ServedModel
from carpool.gateway.standing import standing_of
from carpool.store.errors import StoreError
from carpool.store.group_by import GroupBy
from carpool.store.key_view import iso_time
from carpool.store.usage_store import DAY_S, UsageStore, day_start, month_start

DAYS = 30


Places = Callable[[], Awaitable[Sequence[Place]]]
"""Of all workers of this gateway."""


class PersonReports:
    """Of this gateway: what the person has at others on the same engines is not in it."""

    def __init__(self, models: Sequence[ServedModel], usage: UsageStore, places: Places) -> None:
        self.places = places
        self._models = models
        self._usage = usage

    async def now(self, caller: Caller) -> dict[str, Any]:
        """Nothing of it is read from the database. Times in seconds, `position` is how many
        would go before, if nobody else came."""
        key, person = caller.key, caller.person
        places = await self.places()
        mine = [place for place in places if place.person_id == person.person_id]
        usable = [model for model in self._models if any(map(key.may_use, model.names))]
        return {
            "as_of": time.time(),
            "person": {"name": person.name, "weight": person.weight, **asdict(person.limits)},
            "key": {
                "key_id": key.key_id,
                "label": key.name,
                "lane": key.lane.value,
                "is_private": key.is_private,
                "expires_at": None if key.expires_at is None else iso_time(key.expires_at),
                **asdict(key.limits),
            },
            "models": [_model(model, caller) for model in usable],
            "in_flight": [
                {"request_id": place.request_id, "model": place.model, "for_s": place.for_s}
                for place in mine
                if not place.is_waiting
            ],
            "waiting": [
                {
                    "request_id": place.request_id,
                    "model": place.model,
                    "position": position,
                    "for_s": place.for_s,
                }
                for place, position in standing_of(person.person_id, places)
            ],
        }

    async def usage(self, caller: Caller) -> dict[str, Any]:
        """By day (UTC), and of today and this month, of the person with all their keys and of
        this key. `is_known` False: the database is away."""
        try:
            return await asyncio.to_thread(self._used, caller)
        except StoreError:
            return {"as_of": time.time(), "is_known": False}

    def _used(self, caller: Caller) -> dict[str, Any]:
        now = time.time()
        person_id, key_id = caller.person.person_id, caller.key.key_id
        since = day_start(now) - (DAYS - 1) * DAY_S
        days = self._usage.totals(GroupBy.DAY, since, person_id=person_id)

        def tokens(moment: float, **whose: str) -> int:
            return self._usage.tokens_since(moment, **whose)

        return {
            "as_of": now,
            "is_known": True,
            "days": [asdict(day) for day in days],
            "today": {
                "person": tokens(day_start(now), person_id=person_id),
                "key": tokens(day_start(now), key_id=key_id),
            },
            "month": {
                "person": tokens(month_start(now), person_id=person_id),
                "key": tokens(month_start(now), key_id=key_id),
            },
        }


def _model(model: ServedModel, caller: Caller) -> dict[str, Any]:
    admission = model.gate.admission
    return {
        "name": model.name,
        "is_ready": any(replica.is_ready for replica in model.replicas),
        "in_flight": admission.num_in_flight + admission.elsewhere.in_flight,
        "waiting": admission.num_waiting + admission.elsewhere.waiting,
        **asdict(model.limits),
    }
