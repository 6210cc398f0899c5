"""The dashboard in a browser, over a gateway that works."""

import json
import re

import httpx
import pytest
from gateway_process import MODEL, Person, until
from selenium.webdriver.common.keys import Keys

from carpool.store.admin_key import AdminKeyStore
from carpool.store.key_store import KeyStore

ODD_NAME = "<img src=x onerror=alert(1)> 🦊"

ANSWERS = """
const [paths, status, body] = arguments;
const real = window.fetch;
window.fetch = (path, ...rest) => paths.some((each) => String(path).includes(each))
    ? Promise.resolve(new Response(body, {status}))
    : real(path, ...rest);
"""
"""From now on, what is asked for under those paths is answered like this."""


def somebody(gateway, name, **options) -> Person:
    return Person(gateway, gateway.store.add_key_for(name, None, **options)[1])


def works(gateway, person) -> bool:
    return person.get("/v1/models").status_code == 200


def seats(browser):
    return [each.get_attribute("title") for each in browser.all(".seat:not(.free)")]


# ---------------------------------------------------------------------------- coming in


def test_first_sight_is_a_login_that_a_wrong_key_does_not_pass(browser, gateway, admin_key):
    browser.open(gateway.admin_url)
    browser.see("#admin-key")
    assert not browser.shown("#board")
    browser.fill("#admin-key", f"{admin_key}x")
    browser.press(Keys.ENTER)
    browser.until_text("#login-error", "not the admin key")
    browser.fill("#admin-key", admin_key)
    browser.press(Keys.ENTER)
    browser.see("#seats .model")
    assert [each.text.splitlines()[0] for each in browser.shown(".tile")] == [
        "Is it well?",
        "Who is on it?",
        "How full is it?",
        "What is coming?",
    ]
    browser.until_text("#tile-well", "Yes")
    browser.until_text("#tile-who", "Nobody")
    assert admin_key not in browser.stored()
    assert "carpool_session" not in browser.stored()
    browser.open(f"{gateway.admin_url}/")
    browser.see("#seats .model")
    browser.click("#logout")
    browser.until_text("#login-error", "Logged out")
    browser.open(gateway.admin_url)
    browser.see("#admin-key")


def test_a_session_that_is_over_says_so(dashboard, gateway, admin_key):
    cookies = {each["name"]: each["value"] for each in dashboard.driver.get_cookies()}
    headers = {"origin": gateway.admin_url, "content-type": "application/json"}
    with httpx.Client(base_url=gateway.admin_url, cookies=cookies, headers=headers) as other_tab:
        assert other_tab.request("DELETE", "/session").status_code == 200
    dashboard.until_text("#login-error", "session is over")
    assert not dashboard.shown("#board")


# ---------------------------------------------------------------------------- what goes on


def test_seats_and_queue_follow_what_goes_on(dashboard, gateway, engine):
    ada, ben = somebody(gateway, ODD_NAME), somebody(gateway, "Ben Li")
    until(lambda: works(gateway, ben))
    with engine.holding():
        answers = [ada.start(max_tokens=50) for _ in range(6)]
        until(lambda: len(engine.asked) >= 6)
        answers += [ben.start(max_tokens=50) for _ in range(4)]
        dashboard.until(lambda: len(seats(dashboard)) == 8)
        dashboard.until_text("#tile-full", "100 %")
        dashboard.until_text("#tile-who", "2 people")
        dashboard.until(lambda: len(dashboard.all(".queue li")) == 2)
        assert sum(ODD_NAME in title for title in seats(dashboard)) == 6
        assert any(ODD_NAME in each.text for each in dashboard.shown(".legend li"))
        ours, theirs = (
            {each.get_attribute("class") for each in dashboard.all(f'.seat[title^="{name}"]')}
            for name in (ODD_NAME, "Ben Li")
        )
        assert len(ours) == len(theirs) == 1
        assert ours != theirs
        assert dashboard.violations() == []
    assert {answer.result().status_code for answer in answers} == {200}
    dashboard.until(lambda: not seats(dashboard))
    dashboard.until_text("#tile-who", "Nobody")
    assert not dashboard.all("img")


def test_with_many_people_the_page_stays_short_and_finds_them(dashboard, gateway):
    store = KeyStore(gateway.store.database)
    for number in range(30):
        store.add_key_for(f"colleague {number:03}")
    dashboard.open(gateway.admin_url)
    dashboard.until_text("#keys-note", "work")
    dashboard.until(lambda: len(dashboard.all("#keys tbody tr")) == 25)
    dashboard.fill("#key-filter", "colleague 027")
    dashboard.until(lambda: len(dashboard.all("#keys tbody tr")) == 1)
    dashboard.until_text("#keys", "colleague 027")
    dashboard.fill("#key-filter", "nobody like that")
    dashboard.until_text("#keys", "No key like that")


# ---------------------------------------------------------------------------- keys


def test_a_key_is_added_shown_once_limited_and_revoked(dashboard, gateway):
    name = "Chloé <b>Dubois</b>"
    dashboard.click("#add-key")
    dashboard.fill("#field-person", name)
    dashboard.fill("#field-label", "laptop")
    assert dashboard.violations() == []
    dashboard.click("#dialog button[type=submit]")
    text = dashboard.see("#new-key").text
    assert re.fullmatch(r"cp-\w+-[\w-]+", text)
    person = Person(gateway, gateway.store.add_key_for(name)[1])
    person.key = text
    assert works(gateway, person)
    dashboard.press(Keys.ESCAPE)
    assert dashboard.see("#new-key").text == text
    dashboard.click("#dialog .buttons button:nth-child(2)")
    dashboard.until_gone("#new-key")
    assert text not in dashboard.driver.page_source
    key_id = text.split("-")[1]
    dashboard.fill("#key-filter", key_id)
    dashboard.click(f'[data-focus="limit {key_id}"]')
    dashboard.fill("#field-rpm", "5")
    dashboard.click("#dialog button[type=submit]")
    dashboard.until_text("#keys tbody", "5 req/min")
    dashboard.click(f'[data-focus="revoke {key_id}"]')
    dashboard.until_text("#dialog", name)
    dashboard.press(Keys.ENTER)  # the focus is on what does no harm
    dashboard.until_gone("#dialog")
    assert works(gateway, person)
    dashboard.click(f'[data-focus="revoke {key_id}"]')
    dashboard.click("#dialog button.danger")
    dashboard.until_text("#keys tbody", "No key like that")
    assert not works(gateway, person)
    dashboard.click("#key-all")
    dashboard.until_text("#keys tbody", "revoked")


def test_a_mistake_in_a_form_is_told_where_it_was_made(dashboard):
    dashboard.click("#add-key")
    dashboard.fill("#field-person", "Dora")
    dashboard.click("#dialog summary")
    dashboard.fill("#field-rpm", "0")
    dashboard.click("#dialog button[type=submit]")
    dashboard.until_text("#dialog .error", "rpm")
    dashboard.press(Keys.ESCAPE)
    dashboard.until_gone("#dialog")


# ---------------------------------------------------------------------------- for everybody


def test_all_of_it_goes_by_keyboard(browser, gateway, admin_key):
    browser.open(gateway.admin_url)
    browser.see("#admin-key")
    browser.press(admin_key, Keys.ENTER)
    browser.see("#seats .model")
    browser.tab_to("#add-key")
    browser.press(Keys.ENTER)
    browser.see("#field-person")
    browser.press("Emil", Keys.ENTER)
    browser.see("#new-key")
    browser.tab_to("#dialog .buttons button:nth-child(2)")
    browser.press(Keys.ENTER)
    browser.until_gone("#dialog")
    assert browser.run("return document.activeElement.id") == "add-key"
    browser.tab_to("#key-filter")
    browser.press("Emil")
    browser.tab_to("[data-focus^=revoke]")
    browser.press(Keys.ENTER)
    browser.tab_to("#dialog button.danger")
    browser.press(Keys.ENTER)
    browser.until_text("#keys tbody", "No key like that")


def test_it_fits_a_phone(dashboard, gateway):
    somebody(gateway, "a-very-long-name-without-any-place-to-break-it" * 2)
    with dashboard.size(360, 740):
        dashboard.open(gateway.admin_url)
        dashboard.until_text("#keys-note", "work")
        assert not dashboard.is_too_wide
        dashboard.click("#add-key")
        assert not dashboard.is_too_wide
        dashboard.press(Keys.ESCAPE)
        dashboard.until_gone("#dialog")


def test_dark_is_the_systems_or_chosen_and_both_can_be_read(dashboard, gateway):
    def theme():
        return dashboard.run("return document.documentElement.dataset.theme")

    assert theme() == "light"
    with dashboard.preferring(prefers_color_scheme="dark", prefers_reduced_motion="reduce"):
        dashboard.until(lambda: theme() == "dark")
        dashboard.until_text("#keys-note", "work")
        assert dashboard.violations() == []
        dashboard.click("#theme")
        assert theme() == "light"
        dashboard.open(gateway.admin_url)
        dashboard.see("#seats .model")
        assert theme() == "light"
        assert dashboard.violations() == []


# ---------------------------------------------------------------------------- what is not known


def test_when_the_gateway_does_not_answer_the_page_says_as_of_when(dashboard):
    dashboard.until_text("#live", "live")
    dashboard.run("window.fetch = () => Promise.reject(new TypeError('gone'));")
    dashboard.until_text("#notices", "Not up to date")
    assert "as of" in dashboard.see("#live").text


def test_when_the_database_is_away_live_figures_go_on(dashboard):
    dashboard.until_text("#keys-note", "work")
    body = json.dumps({"error": {"message": "away", "code": "database_away"}})
    dashboard.run(ANSWERS, ["/keys", "/series", "/who", "/days"], 503, body)
    dashboard.run("document.dispatchEvent(new Event('visibilitychange'))")
    dashboard.until_text("#notices", "The database is away")
    assert dashboard.shown("#keys tbody tr")
    assert "live" in dashboard.see("#live").text


def test_a_clock_that_was_set_is_noticed(dashboard):
    dashboard.until_text("#live", "live")
    later = {"as_of": 4e9, "models": [], "places": [], "num_places": 0}
    dashboard.run(ANSWERS, ["/now"], 200, json.dumps(later))
    dashboard.until_text("#notices", "clock was set forward")
    dashboard.until_text("#tile-well", "Nothing is served")


@pytest.mark.parametrize("path", ["/admin/v1/now", "/admin/v1/keys"])
def test_nothing_of_it_can_be_had_without_the_session(gateway, path):
    assert httpx.get(f"{gateway.admin_url}{path}").status_code == 401
    assert AdminKeyStore(gateway.store.database).current() is not None
    assert MODEL not in httpx.get(gateway.admin_url).text
