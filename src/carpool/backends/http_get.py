"""A small GET, for probes: one connection, one answer, over TCP, TLS or a Unix socket."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httptools

from carpool.backends.address import Address
from carpool.backends.backend import BackendUnreachable

MAX_BODY_BYTES = 8 * 1024 * 1024
_CHUNK_BYTES = 65536


@dataclass(slots=True)
class Answer:
    """Header names are in small letters."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def http_get(
    address: Address, path: str, *, timeout_s: float, headers: Mapping[str, str] | None = None
) -> Answer:
    """The whole answer within `timeout_s`, whatever its status; `path` follows the base path.

    Raises BackendUnreachable.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await _get(address, path, headers or {})
    except TimeoutError:
        raise BackendUnreachable(
            f"{address} did not answer {path} within {timeout_s:g} s"
        ) from None
    except ssl.SSLError as error:
        raise BackendUnreachable(f"no TLS with {address}: {error.reason or error}") from None
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        raise BackendUnreachable(f"cannot connect to {address}: {reason}") from None
    except UnicodeError:
        raise BackendUnreachable(f"{address} is no name of a host") from None
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise BackendUnreachable(f"{address} answered {path} with no HTTP: {error}") from None


async def _get(address: Address, path: str, headers: Mapping[str, str]) -> Answer:
    reader, writer = await _connect(address)
    try:
        writer.write(_request(address, path, headers))
        parts = _Parts()
        parser = httptools.HttpResponseParser(parts)
        parts.status_of = parser.get_status_code
        while not parts.is_complete:
            data = await reader.read(_CHUNK_BYTES)
            if not data:
                break
            parser.feed_data(data)
            if parts.num_bytes > MAX_BODY_BYTES:
                raise BackendUnreachable(f"{address} answered {path} with over 8 MiB")
    finally:
        writer.transport.abort()
    if not parts.is_complete and not parts.ends_with_connection:
        raise BackendUnreachable(f"{address} cut its answer to {path} short")
    return Answer(parts.status, parts.headers, b"".join(parts.body))


async def _connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.uds is not None:
        return await asyncio.open_unix_connection(str(address.uds))
    context = ssl.create_default_context() if address.is_tls else None
    return await asyncio.open_connection(address.host, address.port, ssl=context)


def _request(address: Address, path: str, headers: Mapping[str, str]) -> bytes:
    fields = {"Host": address.authority, "Accept": "*/*", "Connection": "close", **headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"GET {address.base_path}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1")


class _Parts:
    """What the parser has seen; an answer without a length ends with its connection."""

    def __init__(self) -> None:
        self.status = 0
        self.status_of: Callable[[], int] = lambda: 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.num_bytes = 0
        self.is_complete = False

    @property
    def ends_with_connection(self) -> bool:
        has_length = {"content-length", "transfer-encoding"} & self.headers.keys()
        return self.status > 0 and not has_length

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self.status_of()

    def on_body(self, data: bytes) -> None:
        self.body.append(data)
        self.num_bytes += len(data)

    def on_message_complete(self) -> None:
        self.is_complete = True
