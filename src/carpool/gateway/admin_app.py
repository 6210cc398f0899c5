"""The admin API: people, keys, usage and what goes on, for whoever has the admin key; and the
dashboard, a page that uses it.

It works on the database; gateways see changes by their polls, and the one in this process at
once. `/health`, `/version` and `/metrics` need no key, so it is for a listener of its own.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from carpool import __version__
from carpool.gateway.admin_alerts import AdminAlerts
from carpool.gateway.admin_engines import AdminEngines
from carpool.gateway.admin_error import AdminError, answer_error, of_store
from carpool.gateway.admin_keys import AdminKeys
from carpool.gateway.admin_login import AdminLogin
from carpool.gateway.admin_people import AdminPeople
from carpool.gateway.admin_reports import AdminReports
from carpool.gateway.changes import Changes
from carpool.gateway.client import ClientGone
from carpool.gateway.dashboard_days import DashboardDays
from carpool.gateway.dashboard_login import DashboardLogin
from carpool.gateway.dashboard_now import DashboardNow
from carpool.gateway.dashboard_plan import DashboardPlan
from carpool.gateway.dashboard_series import DashboardSeries
from carpool.gateway.dashboard_sessions import DashboardSessions
from carpool.gateway.engine_roster import EngineRoster
from carpool.gateway.live_state import LiveState
from carpool.gateway.pages import FOLDER, Pages
from carpool.planning.plan import Plan
from carpool.store.admin_key import AdminKeyStore
from carpool.store.database import Database
from carpool.store.errors import StoreError
from carpool.store.key_store import KeyStore
from carpool.store.usage_store import UsageStore
from carpool.watch.alert_watch import AlertWatch
from carpool.watch.watching import Watching

PREFIX = "/admin/v1"

_log = logging.getLogger(__name__)


async def _nobody_to_tell() -> None:
    pass


def make_admin_app(
    database: Database,
    live: LiveState,
    registry: CollectorRegistry,
    on_change: Callable[[], Awaitable[None]] = _nobody_to_tell,
    alerts: AlertWatch | None = None,
    roster: EngineRoster | None = None,
    watching: Watching | None = None,
    plans: Mapping[str, Plan] | None = None,
) -> Starlette:
    """`on_change` is awaited after every change of people or keys, before it is answered."""
    keys = KeyStore(database)
    changes = Changes(on_change)
    people, keys_api = AdminPeople(keys, changes), AdminKeys(keys, changes)
    reports = AdminReports(UsageStore(database), live)
    login = DashboardLogin(AdminLogin(AdminKeyStore(database)), DashboardSessions())
    pages = Pages({"/": "dashboard.html"})

    async def show_metrics(request: Request) -> Response:
        # In the loop: the gauges read what changes in it.
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def show_page(request: Request) -> Response:
        page = pages.answer(request.url.path, request.headers.get("if-none-match", ""))
        if page is None:
            raise HTTPException(404)
        return page

    return Starlette(
        routes=[
            Mount(
                PREFIX,
                routes=[
                    *people.routes(),
                    *keys_api.routes(),
                    *reports.routes(),
                    *DashboardNow(live).routes(),
                    *DashboardDays(UsageStore(database)).routes(),
                    *(AdminEngines(roster).routes() if roster is not None else ()),
                    *(AdminAlerts(alerts).routes() if alerts is not None else ()),
                    *DashboardSeries(database, watching).routes(),
                    *DashboardPlan(database, live, plans).routes(),
                ],
                middleware=[Middleware(_Guard, login=login)],
            ),
            *login.routes(),
            Route("/metrics", show_metrics, methods=["GET"]),
            Route("/health", _show_health, methods=["GET"]),
            Route("/version", _show_version, methods=["GET"]),
            Route("/", show_page, methods=["GET"]),
            Route(f"{FOLDER}{{name:path}}", show_page, methods=["GET"]),
        ],
        middleware=[Middleware(_NotStored)],
        exception_handlers={
            AdminError: answer_error,
            HTTPException: _answer_http_error,
            StoreError: _answer_store_error,
            ClientGone: _answer_nobody,
            Exception: answer_error,
        },
    )


class _Guard:
    """Lets nobody through without the admin key, or a session that began with it, to whatever
    path."""

    def __init__(self, app: ASGIApp, login: DashboardLogin) -> None:
        self._app = app
        self._login = login

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["admin_key_id"] = await self._login.admin_key_id(Request(scope))
        await self._app(scope, receive, send)


class _NotStored:
    """Answers hold keys and people's habits: no cache may keep them. Pages do not."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                if all(name != b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        await self._app(scope, receive, send_marked)


async def _show_health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _show_version(request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """What Starlette's router says: no such path, no such method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    message = {404: f"there is no {path:.200}", 405: f"{path:.200} takes no {request.method}"}
    answer = AdminError(
        status, "not_found" if status == 404 else "bad_request", message.get(status, str(error))
    ).response()
    if isinstance(error, HTTPException) and error.headers:
        answer.headers.update(error.headers)
    return answer


async def _answer_store_error(request: Request, error: Exception) -> Response:
    answer = of_store(error)
    if answer.status >= 500:
        _log.warning("the admin API cannot use the database: %s", error)
    return answer.response()


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
