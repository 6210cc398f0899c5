"""A web page does not reach a server on the loopback address by a name of its own."""

import pytest


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:8000", 200),
        ("[::1]:8000", 200),
        ("192.168.1.5:8000", 200),
        ("carpool.localhost", 200),
        ("host.docker.internal:8000", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("evillocalhost", 403),
    ],
)
@pytest.mark.parametrize("server", ["http://127.0.0.1:8000", "http://[::1]:8000"])
def test_only_local_names_reach_a_loopback_address(client, server, host, status):
    client.base_url = server
    response = client.get("/v1/models", headers={"host": host})
    assert response.status_code == status
    response = client.post("/v1/completions", {"prompt": "x"}, headers={"host": host})
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "host_not_allowed"
        assert host in response.json()["error"]["message"]


@pytest.mark.parametrize("server", ["http://192.168.1.5:8000", "http://engine"])
def test_names_on_the_network_are_their_owners_business(client, server):
    client.base_url = server
    assert client.get("/v1/models", headers={"host": "llm.example"}).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models/", "/health/", "/v1/completions/", "//evil.example/"])
def test_nobody_is_sent_elsewhere(client, path):
    for method in ("GET", "POST"):
        response = client.request(method, path, headers={"host": "evil.example"})
        assert response.status_code in (404, 405)
        assert "location" not in response.headers
