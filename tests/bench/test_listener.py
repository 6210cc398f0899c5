"""Who listens on a port."""

import os
import socket
import sys

import pytest

from carpool.bench.listener import listening_pid
from carpool.bench.memory_watch import resident_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_this_process_is_found_by_its_port_and_no_longer_once_it_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert listening_pid(port) == os.getpid()
    assert listening_pid(port) is None


def test_memory_of_a_process_is_what_it_holds() -> None:
    used = resident_bytes(os.getpid())
    assert used is not None
    assert 10 * 2**20 < used < 2**40
    assert resident_bytes(2**30) is None
