"""What an engine on a TCP port of this machine needs: a port, and a key that keeps others out."""

import secrets
import socket

from carpool.backends.address import Address

LOOPBACK = "127.0.0.1"


def local_address() -> Address:
    """A port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return Address(LOOPBACK, probe.getsockname()[1])


def new_api_key() -> str:
    """Anybody on the machine can connect to a port: the engine answers its gateway alone."""
    return secrets.token_urlsafe(32)
