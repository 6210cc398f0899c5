"""The dashboard's login: a cookie in place of the admin key, for this server's own page alone."""

import pytest
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from carpool.gateway import admin_login
from carpool.gateway.admin_app import make_admin_app
from carpool.gateway.admin_login import FAILURES_PER_MINUTE
from carpool.store.admin_key import AdminKeyStore
from carpool.store.database import Database
from carpool.store.errors import DatabaseAway

OWN = {"sec-fetch-site": "same-origin", "origin": "http://testserver"}


class Nobody:
    def models(self):
        return []

    def people(self):
        return []

    def places(self):
        return []


@pytest.fixture
def database(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/carpool.db")
    database.migrate()
    yield database
    database.close()


@pytest.fixture
def key(database):
    return AdminKeyStore(database).renew().text


@pytest.fixture
def browser(database, key):
    return TestClient(make_admin_app(database, Nobody(), CollectorRegistry()), headers=OWN)


def log_in(browser, key, **options):
    return browser.post("/session", json={"key": key}, **options)


def test_the_cookie_opens_the_admin_api_until_the_session_is_ended(browser, key):
    assert browser.get("/admin/v1/now").status_code == 401
    answer = log_in(browser, key)
    assert answer.status_code == 201
    assert key not in answer.text
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert key not in cookie
    assert browser.get("/admin/v1/now").json()["places"] == []
    assert browser.post("/admin/v1/people", json={"name": "Ana"}).status_code == 201
    kept = dict(browser.cookies)
    assert browser.request("DELETE", "/session", json={}).status_code == 200
    assert not browser.cookies
    browser.cookies.update(kept)
    assert browser.get("/admin/v1/now").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "http://testserver:3000"},
        {"origin": "null"},
    ],
)
def test_what_another_page_has_the_browser_send_is_refused(browser, key, headers):
    log_in(browser, key)
    sent = OWN | headers
    answers = [
        browser.get("/admin/v1/people", headers=sent),
        browser.post("/admin/v1/people", json={"name": "Eve"}, headers=sent),
        browser.delete("/admin/v1/people/Eve", headers=sent),
        browser.post("/session", json={"key": key}, headers=sent),
        browser.request("DELETE", "/session", json={}, headers=sent),
    ]
    assert [answer.status_code for answer in answers] == [403] * 5
    assert browser.get("/admin/v1/people").json() == {"people": []}


def test_a_change_must_say_where_it_comes_from(database, key):
    bare = TestClient(make_admin_app(database, Nobody(), CollectorRegistry()))
    assert log_in(bare, key).status_code == 403
    assert log_in(bare, key, headers=OWN).status_code == 201
    assert bare.get("/admin/v1/people").status_code == 200
    assert bare.post("/admin/v1/people", json={"name": "Ana"}).status_code == 403
    by_key = {"authorization": f"Bearer {key}"}
    assert bare.post("/admin/v1/people", json={"name": "Ana"}, headers=by_key).status_code == 201


def test_a_new_admin_key_ends_the_sessions_of_the_one_before(browser, key, database, monkeypatch):
    monkeypatch.setattr(admin_login, "REMEMBERED_S", 0.0)
    log_in(browser, key)
    assert browser.get("/admin/v1/now").status_code == 200
    AdminKeyStore(database).renew()
    login = browser.get("/admin/v1/now")
    assert login.status_code == 401
    assert "cpa-" not in login.text


def test_a_wrong_key_gets_no_cookie_and_many_are_told_to_wait(browser, key):
    answers = [log_in(browser, f"{key}x") for _ in range(FAILURES_PER_MINUTE + 1)]
    assert {answer.status_code for answer in answers} == {401, 429}
    assert answers[-1].headers["retry-after"]
    assert not browser.cookies
    assert log_in(browser, key).status_code == 201


def test_a_session_lasts_while_the_database_is_away(browser, key, monkeypatch):
    asked = []

    def fail(self):
        asked.append(self)
        raise DatabaseAway("no connection")

    log_in(browser, key)
    monkeypatch.setattr(admin_login, "REMEMBERED_S", 0.0)
    monkeypatch.setattr(Database, "read", fail)
    assert browser.get("/admin/v1/now").status_code == 200
    assert asked
    assert browser.get("/admin/v1/people").json()["error"]["code"] == "database_away"


@pytest.mark.parametrize("cookie", ["", "x=y; =", "\x01", "carpool_session_80=nothing; a=b"])
def test_odd_cookies_are_nobodys(browser, cookie):
    assert browser.get("/admin/v1/now", headers={"cookie": cookie}).status_code == 401
