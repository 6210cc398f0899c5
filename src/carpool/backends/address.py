"""Where an engine listens."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from carpool.errors import CarpoolError


class BackendAddressError(CarpoolError):
    """An address that nothing can listen on."""


@dataclass(frozen=True, slots=True)
class Address:
    """`uds`, the path of a Unix socket, if there is one; else `host` and `port`, over TLS if
    `is_tls`. `base_path` comes before "/v1" in every path ("" or like "/api")."""

    host: str = "localhost"
    port: int = 80
    is_tls: bool = False
    uds: Path | None = None
    base_path: str = ""

    @classmethod
    def from_url(cls, url: str) -> "Address":
        """`http://HOST[:PORT][/PATH][/v1]`, https, or `unix:///PATH`.

        Raises BackendAddressError for anything else.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BackendAddressError(f"{url} is no address: {error}") from None
        if parts.scheme == "unix" and parts.path:
            return cls(uds=Path(parts.path))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BackendAddressError(
                f"{url} is no address of an engine; give http://HOST:PORT, https://HOST or "
                f"unix:///PATH"
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            raise BackendAddressError(
                f"the address at {parts.hostname} has more than host, port and path; "
                f"a key goes in the option of its own"
            )
        is_tls = parts.scheme == "https"
        return cls(
            host=parts.hostname,
            port=port if port is not None else (443 if is_tls else 80),
            is_tls=is_tls,
            base_path=parts.path.rstrip("/").removesuffix("/v1").rstrip("/"),
        )

    @property
    def authority(self) -> str:
        """What the Host header says."""
        if self.uds is not None:
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.uds is not None:
            return f"unix://{self.uds}"
        return f"http{'s' if self.is_tls else ''}://{self.authority}{self.base_path}"
