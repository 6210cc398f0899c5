"""Addresses: taken at once, given back after, and refused in one sentence."""

import os
import socket
import stat
import subprocess
import sys

import pytest

from carpool.serving.listen import Address, AddressError, base_url, listening


@pytest.fixture
def socket_path(tmp_path, monkeypatch):
    """A path short enough for a socket."""
    monkeypatch.chdir(tmp_path)
    return tmp_path.joinpath("s.sock").relative_to(tmp_path)


def connect(path):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


def test_any_free_port_is_taken_and_told():
    with listening(Address(port=0)) as listener:
        url = base_url(listener)
        assert url.startswith("http://127.0.0.1:")
        port = int(url.rsplit(":", 1)[1])
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_port_in_use_is_named_with_what_to_do():
    with listening(Address(port=0)) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(AddressError, match=rf"port {port} .* in use.*--port"),
            listening(Address(port=port)),
        ):
            pass


def test_a_port_is_free_again_after():
    with listening(Address(port=0)) as listener:
        port = listener.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
    with listening(Address(port=port)):
        pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.7", "x" * 300])
def test_a_host_that_is_not_ours_is_refused(host):
    with pytest.raises(AddressError, match=host[:60]), listening(Address(host=host, port=0)):
        pass


def test_all_addresses_are_reached_at_the_local_one():
    with listening(Address(host="0.0.0.0", port=0)) as listener:
        assert base_url(listener).startswith("http://127.0.0.1:")


def test_a_unix_socket_is_its_owners_alone_and_gone_after(socket_path):
    old = os.umask(0)
    try:
        with listening(Address(uds=socket_path)) as listener:
            assert stat.S_IMODE(socket_path.stat().st_mode) == 0o600
            assert base_url(listener) == "http://localhost"
            connect(socket_path).close()
            assert os.umask(0) == 0
    finally:
        os.umask(old)
    assert not socket_path.exists()


def test_a_unix_socket_is_gone_after_a_failure_too(socket_path):
    with pytest.raises(KeyError), listening(Address(uds=socket_path)):
        raise KeyError
    assert not socket_path.exists()


def test_a_socket_that_nobody_listens_on_is_replaced(socket_path):
    script = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(socket_path)!r})"
    subprocess.run([sys.executable, "-c", script], check=True)
    assert socket_path.exists()
    with listening(Address(uds=socket_path)):
        connect(socket_path).close()


def test_a_socket_in_use_is_left_alone(socket_path):
    with listening(Address(uds=socket_path)):
        with (
            pytest.raises(AddressError, match="in use by another server"),
            listening(Address(uds=socket_path)),
        ):
            pass
        connect(socket_path).close()


def test_a_file_that_is_no_socket_is_left_alone(socket_path):
    socket_path.write_text("precious")
    with (
        pytest.raises(AddressError, match=r"is no socket.*--uds"),
        listening(Address(uds=socket_path)),
    ):
        pass
    assert socket_path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_refused(socket_path):
    path = socket_path.parent / "none" / "s.sock"
    with pytest.raises(AddressError, match="cannot listen"), listening(Address(uds=path)):
        pass


def test_a_path_too_long_for_a_socket_is_refused(tmp_path):
    path = tmp_path / ("x" * 200)
    with pytest.raises(AddressError, match="cannot listen"), listening(Address(uds=path)):
        pass
