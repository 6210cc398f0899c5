"""What went wrong on the way to a server, for people, without anything but its name."""

import socket
import ssl


def network_trouble(host: str, error: OSError) -> str:
    match error:
        case TimeoutError():
            return f"{host} did not answer in time"
        case ssl.SSLError():
            reason = getattr(error, "verify_message", None) or error.reason or "it broke"
            return f"no TLS with {host}: {reason}"
        case socket.gaierror():
            return f"the name {host} cannot be resolved"
        case _:
            return f"cannot reach {host}: {error.strerror or 'the connection broke'}"
