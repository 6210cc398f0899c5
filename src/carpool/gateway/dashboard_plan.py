"""Plan and measured, side by side: what a model was planned for and what has come of it."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_fields import NoQuery, read_query
from carpool.gateway.live_state import LiveState, ModelState
from carpool.planning.plan import Plan
from carpool.store.database import Database
from carpool.watch.series_reader import SeriesReader

DAY_S = 86_400.0
MINUTE_S = 60
_MEANS = ("prompt_tokens.mean", "output_tokens.mean")
_COUNTS = ("prompt_tokens.count", "output_tokens.count")
_MOST = ("in_flight.max", "people_active.max", "tokens_per_second")


class DashboardPlan:
    """`plans` are of the models by name, of those for which one was made."""

    def __init__(
        self,
        database: Database,
        live: LiveState,
        plans: Mapping[str, Plan] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = SeriesReader(database)
        self._live = live
        self._plans = plans or {}
        self._clock = clock

    def routes(self) -> list[Route]:
        return [Route("/plan", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        read_query(request, NoQuery)
        models = self._live.models()
        return JSONResponse(await asyncio.to_thread(self._told, models))

    def _told(self, models: list[ModelState]) -> dict[str, Any]:
        now = self._clock()
        return {"as_of": now, "models": [self._model(model, now) for model in models]}

    def _model(self, model: ModelState, now: float) -> dict[str, Any]:
        names = (*_MEANS, *_COUNTS, *_MOST)
        columns = self._reader.read_series(names, now - DAY_S, now, MINUTE_S, model.name).columns
        plan = self._plans.get(model.name)
        return {
            "name": model.name,
            "max_num_seqs": model.max_num_seqs,
            "provenance": model.provenance,
            "rows": [
                {"name": name, "plan": planned, "measured": measured}
                for name, planned, measured in (
                    ("Seats", _seats(plan), model.max_num_seqs),
                    ("KV tokens", None if plan is None else plan.pool.kv_tokens, _known(model)),
                    ("In flight, most", None, _most(columns["in_flight.max"])),
                    (
                        "Mean context, tokens",
                        None if plan is None else plan.request.profile.context_tokens,
                        _context(columns),
                    ),
                    ("People active, most", _people(plan), _most(columns["people_active.max"])),
                    ("Output tokens/s, most", _pace(plan), _most(columns["tokens_per_second"])),
                )
            ],
        }


def _known(model: ModelState) -> int | None:
    """KV tokens, where there is a bound to them."""
    return None if model.kv_tokens is None or model.kv_tokens == sys.maxsize else model.kv_tokens


def _seats(plan: Plan | None) -> int | None:
    return None if plan is None or plan.capacity is None else plan.capacity.max_num_seqs


def _people(plan: Plan | None) -> int | None:
    return None if plan is None or plan.people is None else plan.people.num_people


def _pace(plan: Plan | None) -> float | None:
    return (
        None if plan is None or plan.planned is None else plan.planned.total_tokens_per_second.value
    )


def _most(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _context(columns: Mapping[str, list[float | None]]) -> float | None:
    """What a sequence held on average while it ran: the prompt, and half of the answer."""
    prompt, output = (
        _weighted(columns[mean], columns[number])
        for mean, number in zip(_MEANS, _COUNTS, strict=True)
    )
    return None if prompt is None or output is None else prompt + output / 2


def _weighted(means: list[float | None], counts: list[float | None]) -> float | None:
    pairs = [(m, n) for m, n in zip(means, counts, strict=True) if m is not None and n]
    number = sum(n for _, n in pairs)
    return sum(m * n for m, n in pairs) / number if number else None
