"""--no-auth: everybody on this machine is let in, but no web page."""

import pytest
from gateway_process import CHAT, MODEL, ScriptedEngine, body, gateway_process


@pytest.fixture(scope="module")
def open_house(tmp_path_factory):
    home = tmp_path_factory.mktemp("open")
    with (
        ScriptedEngine().serving() as engine,
        gateway_process(engine.url, home, "--no-auth") as gateway,
    ):
        yield gateway


def test_nobody_needs_a_key(open_house):
    assert open_house.http.post(CHAT, json=body()).status_code == 200
    assert open_house.http.get("/v1/models").json()["data"][0]["id"] == MODEL


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_what_a_page_may_send_without_asking_is_not_taken(open_house, content_type):
    headers = {} if content_type is None else {"content-type": content_type}
    content = b'{"model": "team-model", "messages": []}'
    answer = open_house.http.post(CHAT, content=content, headers=headers)
    assert answer.status_code == 415
    assert answer.json()["error"]["param"] == "content-type"


def test_a_name_that_points_here_for_a_moment_is_not_answered(open_house):
    answer = open_house.http.post(CHAT, json=body(), headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert "evil.example" in answer.json()["error"]["message"]


def test_the_network_is_not_let_in(tmp_path):
    options = ("--no-auth", "--host", "0.0.0.0")
    refused = pytest.raises(AssertionError, match=r"--no-auth with --host 0\.0\.0\.0")
    with refused, gateway_process("http://127.0.0.1:9", tmp_path, *options):
        pass


def test_with_keys_a_public_name_and_any_type_do(tmp_path):
    with ScriptedEngine().serving() as engine, gateway_process(engine.url, tmp_path) as gateway:
        ada = gateway.add_person()
        headers = {"host": "llm.example", "content-type": "text/plain"}
        assert ada.ask(headers=headers).status_code == 200
        assert engine.asked[0].headers["content-type"] == "application/json"
