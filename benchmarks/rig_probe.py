"""`carpool`, with a Unix socket beside it that tells what the process holds.

    python -m benchmarks.rig_probe SOCKET serve MODEL ...     then `read_probe(SOCKET)`

The gateway is not changed: a thread of its own counts living objects when it is asked.
"""

import asyncio
import gc
import json
import os
import socket
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Held:
    """What a gateway's process holds. `seat_tokens`: KV tokens of what is in flight."""

    descriptors: int
    tasks: int
    exchanges: int
    reservations: int
    tickets_waiting: int
    seats: int
    seat_tokens: int
    replica_loads: int


def count() -> Held:
    """Of this process, after a garbage collection; exact if nothing changes meanwhile.
    Raises LookupError in a process that is no gateway."""
    from carpool.gateway.admission import Admission
    from carpool.gateway.exchange import Exchange
    from carpool.gateway.limits import TokenReservation
    from carpool.gateway.routing import Replica

    gc.unfreeze()  # what a server has put out of the collector's sight is not listed
    gc.collect()
    alive = gc.get_objects()
    admissions = [each for each in alive if isinstance(each, Admission)]
    replicas = [each for each in alive if isinstance(each, Replica)]
    if not admissions or not replicas:
        raise LookupError("the probe finds no queue or no replica in this process")
    return Held(
        descriptors=len(os.listdir("/proc/self/fd")),
        tasks=sum(isinstance(each, asyncio.Task) and not each.done() for each in alive),
        exchanges=sum(isinstance(each, Exchange) for each in alive),
        reservations=sum(isinstance(each, TokenReservation) for each in alive),
        tickets_waiting=sum(admission.num_waiting for admission in admissions),
        seats=sum(admission.num_in_flight for admission in admissions),
        seat_tokens=sum(admission.in_flight_tokens for admission in admissions),
        replica_loads=sum(replica.num_in_flight for replica in replicas),
    )


def read_probe(path: Path) -> Held:
    """Ask the process that listens at `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        with probe.makefile("rb") as answer:
            return Held(**json.loads(answer.read()))


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(json.dumps(asdict(count())).encode())


def main() -> None:
    from carpool.cli import app

    path, *arguments = sys.argv[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    threading.Thread(target=_serve, args=(listener,), daemon=True).start()
    app(arguments)


if __name__ == "__main__":
    main()
