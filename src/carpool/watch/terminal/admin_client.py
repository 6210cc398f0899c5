"""Asks the admin API of a gateway."""

import ipaddress
import json
from typing import Any

from carpool.backends.address import Address, BackendAddressError
from carpool.backends.backend import BackendUnreachable
from carpool.backends.http_get import http_get
from carpool.errors import CarpoolError
from carpool.watch.notice import plain

TIMEOUT_S = 5.0


class AdminRefused(CarpoolError):
    """The admin API does not let this key in, or there is no such API."""


class AdminAway(CarpoolError):
    """It does not answer, or cannot say that now."""


def admin_address(url: str) -> Address:
    """Raises AdminRefused for a URL that would carry the key where others can read it."""
    try:
        address = Address.from_url(url)
    except BackendAddressError:
        raise AdminRefused(
            f"{plain(url)} is no address of an admin API; give http://127.0.0.1:PORT or "
            "https://HOST:PORT"
        ) from None
    if address.uds is None and not address.is_tls and not _is_loopback(address.host):
        raise AdminRefused(
            f"http://{address.host} would send the admin key in the clear; use https://, or a "
            f"tunnel: ssh -L 8001:127.0.0.1:8001 {address.host}"
        )
    return address


class AdminClient:
    def __init__(self, address: Address, key: str) -> None:
        self.address = address
        self._headers = {"Authorization": f"Bearer {key}", "Accept": "application/json"}

    async def get(self, path: str) -> dict[str, Any]:
        """The answer to a path under /admin/v1. Raises AdminRefused, AdminAway."""
        try:
            answer = await http_get(
                self.address, f"/admin/v1{path}", timeout_s=TIMEOUT_S, headers=self._headers
            )
        except BackendUnreachable as error:
            raise AdminAway(plain(str(error))) from None
        if answer.status == 401:
            raise AdminRefused("the admin key is not right; make a new one: carpool admin-key")
        if answer.status == 404 or 300 <= answer.status < 400:
            raise AdminRefused(
                f"{self.address} has no {path.partition('?')[0]}; is it the admin API of a "
                "gateway of this version (carpool serve --admin-port)?"
            )
        if answer.status != 200:
            raise AdminAway(_reason(answer.status, answer.body))
        try:
            fields = json.loads(answer.body)
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise AdminAway("it answered with no JSON object")
        return fields


def _reason(status: int, body: bytes) -> str:
    try:
        return plain(str(json.loads(body)["error"]["message"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"it answered with {status}"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
