"""Logging in at the dashboard: the admin key goes in once, and a cookie stands for it.

A browser sends the cookie with whatever asks for it, so what comes with the cookie alone must
come from a page of this server: of this scheme, host and port.
"""

from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carpool.gateway.admin_error import AdminError
from carpool.gateway.admin_fields import Fields, NoFields, read_fields
from carpool.gateway.admin_login import AdminLogin
from carpool.gateway.dashboard_sessions import LIFE_S, DashboardSessions

_OWN_SITE = (b"same-origin", b"none")
"""Sec-Fetch-Site of a request from a page of this server, or typed by somebody."""
_READS = ("GET", "HEAD")


class LoginFields(Fields):
    key: str


class DashboardLogin:
    """By the admin key in an Authorization header or, of a browser, by its session's cookie."""

    def __init__(self, login: AdminLogin, sessions: DashboardSessions) -> None:
        self._login = login
        self._sessions = sessions

    def routes(self) -> list[Route]:
        return [
            Route("/session", self.begin, methods=["POST"]),
            Route("/session", self.end, methods=["DELETE"]),
        ]

    async def admin_key_id(self, request: Request) -> str:
        """Of the key that lets this request in. Raises AdminError and StoreError."""
        headers = dict(request.scope["headers"])
        authorization = headers.get(b"authorization")
        token = _token(request)
        if authorization is not None or token is None:
            return await self._login.admin_key_id(authorization or b"")
        check_is_own_page(request.method, headers)
        key_id = self._sessions.admin_key_id(token)
        if key_id is None or not await self._login.is_current(key_id):
            raise AdminError(401, "no_session", "this session is over; log in again")
        return key_id

    async def begin(self, request: Request) -> Response:
        check_is_own_page(request.method, dict(request.scope["headers"]))
        fields = await read_fields(request, LoginFields)
        key_id = await self._login.admin_key_id(b"Bearer " + fields.key.strip().encode())
        answer = JSONResponse({"admin_key_id": key_id}, 201)
        answer.set_cookie(
            _cookie_name(request),
            self._sessions.begin(key_id),
            max_age=int(LIFE_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def end(self, request: Request) -> Response:
        check_is_own_page(request.method, dict(request.scope["headers"]))
        await read_fields(request, NoFields)
        if (token := _token(request)) is not None:
            self._sessions.end(token)
        answer = JSONResponse({})
        answer.delete_cookie(_cookie_name(request), httponly=True, samesite="strict")
        return answer


def check_is_own_page(method: str, headers: Mapping[bytes, bytes]) -> None:
    """Raises AdminError for what a page of another site, or of another port of this machine, has
    the browser send. A change must say where it comes from."""
    site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
    if site is not None and site not in (_OWN_SITE if method in _READS else _OWN_SITE[:1]):
        raise _from_elsewhere()
    if origin is not None:
        if urlsplit(origin.decode("latin-1")).netloc != headers.get(b"host", b"").decode("latin-1"):
            raise _from_elsewhere()
    elif site is None and method not in _READS:
        raise _from_elsewhere()


def _from_elsewhere() -> AdminError:
    return AdminError(
        403,
        "not_from_here",
        "a browser's session takes changes from this server's own page alone; programs send "
        "`Authorization: Bearer cpa-...`",
    )


def _cookie_name(request: Request) -> str:
    """Browsers keep cookies by host, whatever the port: two gateways of a machine are two."""
    _, port = request.scope.get("server") or ("", 0)
    return f"carpool_session_{port or 0}"


def _token(request: Request) -> str | None:
    """Of the session's cookie."""
    try:
        cookies: SimpleCookie = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return None
    found = cookies.get(_cookie_name(request))
    return None if found is None else found.value
