"""What the dashboard tells over time: the day's curves, their reading, and who uses what."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_fields import Fields, NoQuery, read_query
from carpool.store.database import Database
from carpool.store.key_store import KeyStore
from carpool.watch.callers import CallerSeries
from carpool.watch.series_reader import SeriesReader, SeriesTable, resolution_for
from carpool.watch.signal import as_dict
from carpool.watch.watching import Watching

SPANS_S = {"1h": 3600.0, "24h": 86_400.0, "7d": 7 * 86_400.0, "30d": 30 * 86_400.0}
FIGURES = ("ttft.p50", "ttft.p99", "waiting.max", "in_flight.mean", "tokens_per_second")
RECENT_S = 300.0
RECENT_RESOLUTIONS = (60, 10)
"""A minute has more requests in it; of a gateway that has just begun there is none."""
HOUR_S = 3600
DIGITS = 4
"""That figures are told with: more is neither known nor seen."""
OTHERS = "everybody else"


class SeriesQuery(Fields):
    range: Literal["1h", "24h", "7d", "30d"] = "24h"
    model: str | None = None


class DashboardSeries:
    """`watching` None: nobody reads the series for signals."""

    def __init__(
        self,
        database: Database,
        watching: Watching | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._reader = SeriesReader(database)
        self._keys = KeyStore(database)
        self._watching = watching
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            Route("/series", self.show_series, methods=["GET"]),
            Route("/outlook", self.show_outlook, methods=["GET"]),
            Route("/who", self.show_who, methods=["GET"]),
        ]

    async def show_series(self, request: Request) -> Response:
        query = read_query(request, SeriesQuery)
        now = self._clock()
        since = now - SPANS_S[query.range]
        table = await asyncio.to_thread(
            self._reader.read_series,
            FIGURES,
            since,
            now,
            resolution_for(since, now),
            query.model,
        )
        columns = {name: [_short(value) for value in table.columns[name]] for name in FIGURES}
        told = {"resolution": table.resolution, "starts": table.starts, "columns": columns}
        return JSONResponse({"as_of": now} | told)

    async def show_outlook(self, request: Request) -> Response:
        read_query(request, NoQuery)
        return JSONResponse(await asyncio.to_thread(self._outlook))

    async def show_who(self, request: Request) -> Response:
        read_query(request, NoQuery)
        return JSONResponse(await asyncio.to_thread(self._who))

    def _outlook(self) -> dict[str, Any]:
        now = self._clock()
        recent = (
            _latest(self._reader.read_series(FIGURES, now - RECENT_S, now, resolution))
            for resolution in RECENT_RESOLUTIONS
        )
        told = next((each for each in recent if each["at"] is not None), None)
        outlook = None if self._watching is None else self._watching.look()
        return {
            "as_of": now,
            "recent": told,
            "readings": [] if outlook is None else [as_dict(each) for each in outlook.readings],
            "signals": [] if outlook is None else [as_dict(each) for each in outlook.signals],
        }

    def _who(self) -> dict[str, Any]:
        now = self._clock()
        callers = self._reader.read_callers(now - SPANS_S["24h"], now, HOUR_S)
        names = {each.person_id: each.name for each in self._keys.snapshot().people.values()}
        by_person: dict[str, list[CallerSeries]] = {}
        for caller in callers:
            by_person.setdefault(caller.person_id, []).append(caller)
        everything = sum(map(_tokens, callers))
        people = [
            _use(person_id, names.get(person_id), own, everything)
            for person_id, own in by_person.items()
        ]
        people.sort(key=lambda person: -(person["prompt_tokens"] + person["output_tokens"]))
        return {"as_of": now, "people": people}


def _use(
    person_id: str, name: str | None, callers: Sequence[CallerSeries], everything: float
) -> dict[str, Any]:
    """Of a person with all their keys at all models. `prompt_lengths` are mean tokens of a
    prompt by hour, None where there was none."""
    tokens = sum(map(_tokens, callers))
    return {
        "person_id": person_id,
        "name": name or (person_id if person_id else OTHERS),
        "requests": _total(callers, "requests"),
        "prompt_tokens": _total(callers, "prompt_tokens"),
        "output_tokens": _total(callers, "output_tokens"),
        "share": tokens / everything if everything else None,
        "prompt_lengths": [
            _short(prompt / requests) if requests else None
            for prompt, requests in zip(
                _by_bucket(callers, "prompt_tokens"), _by_bucket(callers, "requests"), strict=True
            )
        ],
    }


def _tokens(caller: CallerSeries) -> float:
    return caller.total("prompt_tokens") + caller.total("output_tokens")


def _total(callers: Sequence[CallerSeries], name: str) -> float:
    return sum(caller.total(name) for caller in callers)


def _by_bucket(callers: Sequence[CallerSeries], name: str) -> list[float]:
    return [
        sum(value or 0.0 for value in values)
        for values in zip(*(caller.columns[name] for caller in callers), strict=True)
    ]


def _latest(table: SeriesTable) -> dict[str, float | None]:
    """The last minute in which a request had its first token, and the last rate of tokens."""
    values = {name: table.columns[name] for name in FIGURES}
    answered = [n for n, value in enumerate(values["ttft.p50"]) if value is not None]
    last = answered[-1] if answered else None
    rates = [rate for rate in values["tokens_per_second"] if rate is not None]
    return {
        "at": None if last is None else table.starts[last],
        "ttft_p50": None if last is None else _short(values["ttft.p50"][last]),
        "ttft_p99": None if last is None else _short(values["ttft.p99"][last]),
        "tokens_per_second": _short(rates[-1]) if rates else None,
    }


def _short(value: float | None) -> float | None:
    if value is None or value == 0 or not math.isfinite(value):
        return 0.0 if value == 0 else None
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
