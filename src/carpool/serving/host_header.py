"""Refuses what a web page asks of this machine under a name of its own.

A page of evil.example may have that name point to 127.0.0.1 once it is loaded (DNS rebinding):
to the browser, a server on the loopback address is then that page's own. The Host header tells.
"""

import ipaddress
import json
import socket
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

# No public name ends like these; container runtimes have names under .internal.
_LOCAL_ENDS = (".localhost", ".local", ".internal")


class LocalHosts:
    """An ASGI application in front of `app`, for connections to a loopback address alone: what
    listens to the network is reached under names that only its owner knows."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = frozenset({"", "localhost", socket.gethostname().lower()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _is_loopback(scope):
            host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
            if not self._is_local(host):
                await _refuse(host, send)
                return
        await self._app(scope, receive, send)

    def _is_local(self, host: str) -> bool:
        name = _without_port(host).lower().rstrip(".")
        return name in self._names or name.endswith(_LOCAL_ENDS) or _is_address(name)


async def _refuse(host: str, send: Send) -> None:
    message = (
        f"Host is {json.dumps(host[:80])}, but on a loopback address this server answers to "
        "localhost, to IP addresses and to this machine's name; a proxy in front must send one of "
        "them"
    )
    error = {
        "message": message,
        "type": "permission_error",
        "param": None,
        "code": "host_not_allowed",
    }
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _is_loopback(scope: Mapping[str, Any]) -> bool:
    address, *_ = scope.get("server") or ("",)
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
