"""nginx and Caddy as processes, with the files of docs/, in front of a gateway."""

import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import httpx
from gateway_process import PATIENCE_S, GatewayProcess

DOCS = Path(__file__).parents[2] / "docs"
NAME = "localhost"


@dataclass(frozen=True)
class Certificate:
    """For `localhost`, signed by itself."""

    cert: Path
    key: Path


def make_certificate(folder: Path) -> Certificate:
    certificate = Certificate(folder / "cert.pem", folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={NAME}"),
            *("-addext", f"subjectAltName=DNS:{NAME}"),
            *("-out", certificate.cert, "-keyout", certificate.key),
        ],
        check=True,
        capture_output=True,
    )
    return certificate


def substituted(text: str, changes: Mapping[str, str]) -> str:
    """Each of `changes` is made, and to something."""
    for old, new in changes.items():
        assert old in text, f"{old!r} is not in the file"
        text = text.replace(old, new)
    return text


@contextlib.contextmanager
def nginx(
    program: str, folder: Path, gateway: GatewayProcess, certificate: Certificate, *, site: str
) -> Iterator[GatewayProcess]:
    """`site`: the text of docs/nginx.conf. The gateway as it is seen through nginx."""
    port = _free_port()
    places = {
        "127.0.0.1:8000": gateway.url.removeprefix("http://"),
        "listen 443": f"listen 127.0.0.1:{port}",
        "llm.example.com": NAME,
        "/etc/carpool/cert.pem": str(certificate.cert),
        "/etc/carpool/key.pem": str(certificate.key),
    }
    (folder / "carpool.conf").write_text(substituted(site, places))
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log {folder}/error.log; "
        f"events {{}} http {{ access_log {folder}/access.log; {temporary} "
        f"include {folder}/carpool.conf; }}"
    )
    command = [
        program,
        "-p",
        str(folder),
        "-e",
        f"{folder}/error.log",
        "-c",
        f"{folder}/nginx.conf",
    ]
    with _serving(command, port, folder):
        yield from _through(gateway, port, certificate)


@contextlib.contextmanager
def caddy(
    program: str, folder: Path, gateway: GatewayProcess, certificate: Certificate
) -> Iterator[GatewayProcess]:
    """The gateway as it is seen through Caddy."""
    port = _free_port()
    places = {
        "127.0.0.1:8000": gateway.url.removeprefix("http://"),
        "llm.example.com {": f"https://{NAME}:{port} {{",
        "/etc/carpool/cert.pem": str(certificate.cert),
        "/etc/carpool/key.pem": str(certificate.key),
        "auto_https disable_redirects": "auto_https disable_redirects\n\tadmin off",
    }
    file = folder / "Caddyfile"
    file.write_text(substituted((DOCS / "Caddyfile").read_text(), places))
    command = [program, "run", "--adapter", "caddyfile", "--config", str(file)]
    with _serving(command, port, folder):
        yield from _through(gateway, port, certificate)


@contextlib.contextmanager
def _serving(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    log = folder / "stderr.log"
    environ = os.environ | {"HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    with log.open("wb") as stderr, subprocess.Popen(command, stderr=stderr, env=environ) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not _listens(port):
                assert process.poll() is None, f"it did not start:\n{log.read_text()}"
                assert time.monotonic() < deadline, "it does not listen"
                time.sleep(0.01)
            yield
        finally:
            process.terminate()


def _through(
    gateway: GatewayProcess, port: int, certificate: Certificate
) -> Iterator[GatewayProcess]:
    """The same gateway, met by another address."""
    seen = copy(gateway)
    seen.url = f"https://{NAME}:{port}"
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(
        base_url=seen.url,
        timeout=PATIENCE_S,
        limits=limits,
        verify=_trusting(certificate),
        trust_env=False,
    ) as seen.http:
        yield seen


def _trusting(certificate: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate.cert))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
