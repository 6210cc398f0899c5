from pathlib import Path

import pytest

from carpool.backends.address import Address, BackendAddressError


@pytest.mark.parametrize(
    ("url", "address", "text"),
    [
        ("http://gpu:8000", Address("gpu", 8000), "http://gpu:8000"),
        ("http://gpu:8000/v1/", Address("gpu", 8000), "http://gpu:8000"),
        ("http://gpu", Address("gpu", 80), "http://gpu"),
        ("https://ai.example/api/v1", Address("ai.example", 443, True, None, "/api"), None),
        ("http://[::1]:8000", Address("::1", 8000), "http://[::1]:8000"),
        ("unix:///run/e.sock", Address(uds=Path("/run/e.sock")), "unix:///run/e.sock"),
    ],
)
def test_urls_are_read(url, address, text):
    assert Address.from_url(url) == address
    assert str(address) == (text or url.removesuffix("/v1"))


@pytest.mark.parametrize(
    "url", ["gpu:8000", "ftp://gpu", "http://", "http://gpu:x", "http://gpu:99999", "unix:"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(BackendAddressError):
        Address.from_url(url)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    with pytest.raises(BackendAddressError) as refused:
        Address.from_url("https://me:hunter2@ai.example/v1")
    assert "hunter2" not in str(refused.value)
