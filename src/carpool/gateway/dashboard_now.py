"""The live picture for the dashboard: engines, seats, and who is on them and in the queue."""

import time
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_fields import NoQuery, read_query
from carpool.gateway.admin_reports import flat
from carpool.gateway.live_state import LiveState

MAX_PLACES = 1000
"""Of which a page is told each by each; of the others it knows the number."""


class DashboardNow:
    """Nothing of it is read from the database."""

    def __init__(self, live: LiveState) -> None:
        self._live = live

    def routes(self) -> list[Route]:
        return [Route("/now", self.show, methods=["GET"])]

    async def show(self, request: Request) -> Response:
        read_query(request, NoQuery)
        places = self._live.places()
        shown: dict[str, Any] = {
            "as_of": time.time(),
            "models": [flat(model) for model in self._live.models()],
            "places": [asdict(place) for place in places[:MAX_PLACES]],
            "num_places": len(places),
        }
        return JSONResponse(shown)
