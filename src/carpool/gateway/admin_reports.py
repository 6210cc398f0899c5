"""What the admin API tells: usage, models, and who is in flight and waiting."""

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_fields import NoQuery, UsageQuery, parse_time, read_query
from carpool.gateway.live_state import LiveState
from carpool.store.group_by import GroupBy
from carpool.store.usage_csv import usage_csv
from carpool.store.usage_store import UsageStore


class AdminReports:
    def __init__(self, usage: UsageStore, live: LiveState) -> None:
        self._usage = usage
        self._live = live

    def routes(self) -> list[Route]:
        return [
            Route("/usage", self.show_usage, methods=["GET"]),
            Route("/models", self.list_models, methods=["GET"]),
            Route("/live", self.show_live, methods=["GET"]),
        ]

    async def show_usage(self, request: Request) -> Response:
        query = read_query(request, UsageQuery)
        since, until = parse_time("since", query.since), parse_time("until", query.until)
        totals = await asyncio.to_thread(self._usage.totals, GroupBy(query.by), since, until)
        if query.format == "csv":
            return Response(usage_csv(totals), media_type="text/csv; charset=utf-8")
        return JSONResponse({"by": query.by, "usage": [asdict(total) for total in totals]})

    async def list_models(self, request: Request) -> Response:
        read_query(request, NoQuery)
        return JSONResponse({"models": [flat(model) for model in self._live.models()]})

    async def show_live(self, request: Request) -> Response:
        """Counts of requests, and the tokens they are expected to take."""
        read_query(request, NoQuery)
        people = [
            flat(person) | {"models": {name: asdict(load) for name, load in person.models.items()}}
            for person in self._live.people()
        ]
        models = [{"name": model.name} | asdict(model.load) for model in self._live.models()]
        return JSONResponse({"people": people, "models": models})


def flat(state: Any) -> dict[str, Any]:
    """A dataclass with a `load`, whose figures stand beside the others."""
    fields = asdict(state)
    load: dict[str, Any] = fields.pop("load")
    return fields | load
