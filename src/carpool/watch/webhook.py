"""Messages about alerts to a webhook, by HTTP POST. No redirect is followed, certificates are
checked, and nothing of the URL but its host is ever said."""

import http.client
import json
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from carpool.watch.chat_shapes import Shape, outgoing, told
from carpool.watch.courier import DeliveryFailed, DeliveryRefused
from carpool.watch.deadline import deadline
from carpool.watch.network_trouble import network_trouble
from carpool.watch.notice import Notice
from carpool.watch.secret_source import AlertConfigError
from carpool.watch.severity import Severity

CONNECT_S = 5.0
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 65_536
_BUSY = frozenset({408, 425, 429})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A Destination. `secret` signs for Feishu and DingTalk."""

    name: str
    shape: Shape
    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)
    min_severity: Severity = Severity.INFO
    ca_file: Path | None = None
    timeout_s: float = TIMEOUT_S
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Raises AlertConfigError."""
        check_url(self.name, self.url)
        if self.secret is not None and self.shape not in (Shape.FEISHU, Shape.DINGTALK):
            raise AlertConfigError(
                f"webhook {self.name}: {self.shape.value} takes no signing secret; leave it out"
            )

    @property
    def kind(self) -> str:
        return self.shape.value

    def send(self, notice: Notice) -> None:
        body, query = outgoing(self.shape, notice, self.secret, self.clock())
        url = urlsplit(self.url)
        target = url.path or "/"
        if wanted := "&".join(part for part in (url.query, query) if part):
            target = f"{target}?{wanted}"
        status, answer, retry_after = self._post(url, target, json.dumps(body).encode())
        self._judge(status, answer, retry_after)

    def _judge(self, status: int, answer: bytes, retry_after: str | None) -> None:
        if 300 <= status < 400:
            raise DeliveryRefused(
                f"its answer was {status}, a redirect; they are not followed: give the URL it "
                "ends at"
            )
        if status in _BUSY or status >= 500:
            raise DeliveryFailed(f"its answer was {status}", _seconds(retry_after))
        if not 200 <= status < 300:
            raise DeliveryRefused(f"its answer was {status}; check the webhook's URL")
        said = told(self.shape, answer)
        if said.is_busy:
            raise DeliveryFailed(f"it takes no more at the moment (code {said.code})")
        if not said.is_taken:
            raise DeliveryRefused(
                f"its answer was no {self.kind} answer"
                if said.code is None
                else f"it refused with code {said.code}; check its secret and its keywords"
            )

    def _post(self, url: SplitResult, target: str, body: bytes) -> tuple[int, bytes, str | None]:
        host = url.hostname or ""
        connection = self._connection(url)
        headers = {"content-type": "application/json; charset=utf-8", "user-agent": "carpool"}
        held: list[socket.socket] = []  # the connection forgets it with the head of the answer
        try:
            with deadline(self.timeout_s, lambda: held[0] if held else connection.sock):
                connection.connect()
                held.append(connection.sock)
                connection.sock.settimeout(self.timeout_s)
                connection.request("POST", target, body, headers)
                answer = connection.getresponse()
                content = answer.read(MAX_ANSWER_BYTES)
        except OSError as error:
            raise DeliveryFailed(network_trouble(host, error)) from None
        except http.client.HTTPException:
            raise DeliveryFailed(f"{host} did not answer with HTTP") from None
        finally:
            connection.close()
        return answer.status, content, answer.getheader("retry-after")

    def _connection(self, url: SplitResult) -> http.client.HTTPConnection:
        """Through the proxy of HTTPS_PROXY, if there is one for that host."""
        host = url.hostname or ""
        if url.scheme == "http":
            return http.client.HTTPConnection(host, url.port or 80, timeout=CONNECT_S)
        context = ssl.create_default_context(cafile=self.ca_file)
        port = url.port or 443
        proxy = urlsplit(urllib.request.getproxies().get("https", ""))
        if not proxy.hostname or urllib.request.proxy_bypass(f"{host}:{port}"):
            return http.client.HTTPSConnection(host, port, timeout=CONNECT_S, context=context)
        through = http.client.HTTPSConnection(
            proxy.hostname, proxy.port or 3128, timeout=CONNECT_S, context=context
        )
        through.set_tunnel(host, port)
        return through


def check_url(name: str, text: str) -> None:
    """Raises AlertConfigError, which says nothing of the URL: its path is the secret."""
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        host, url = None, urlsplit("")
    trouble = None
    if url.scheme not in ("https", "http") or not host:
        trouble = "must be https://host/path"
    elif not text.isascii() or any(not char.isprintable() or char == " " for char in text):
        trouble = "holds a space or a character that URLs do not have"
    elif url.username is not None or url.password is not None:
        trouble = "must have no user name in it"
    elif url.scheme == "http" and host not in _LOOPBACK:
        trouble = "must be https: without TLS anybody on the way could read and use it"
    if trouble is not None:
        raise AlertConfigError(f"webhook {name}: its URL {trouble}")


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() and len(text) < 7 else None
