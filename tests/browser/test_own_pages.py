"""The pages of people with a key, in a browser: the chat, and their own."""

import pytest
from gateway_process import MODEL, until
from mock_engine import chat_events, sse_reply


@pytest.fixture
def ada(gateway):
    return gateway.add_person()


@pytest.fixture
def chat(browser, gateway, ada):
    browser.open(f"{gateway.url}/chat")
    browser.fill("#key", ada.key)
    browser.click("#login form button")
    browser.see("#text")
    return browser


def ask(browser, text="Hello?"):
    browser.fill("#text", text)
    browser.click("#send")


def test_the_chat_wants_a_key_and_keeps_it_only_if_one_wishes(browser, gateway, ada):
    browser.open(f"{gateway.url}/chat")
    browser.fill("#key", f"{ada.key}x")
    browser.click("#login form button")
    browser.until_text("#login .error", "does not work")
    assert browser.violations() == []
    browser.fill("#key", ada.key)
    browser.click("#login form button")
    browser.see("#text")
    assert ada.key not in browser.stored()
    browser.open(f"{gateway.url}/chat")
    browser.fill("#key", ada.key)
    browser.click("#keep")
    browser.click("#login form button")
    browser.see("#text")
    browser.open(f"{gateway.url}/me")
    browser.see("#now .standing")
    browser.click("#forget")
    browser.see("#key")
    assert ada.key not in browser.stored()


def test_an_answer_comes_as_it_is_written_with_its_figures(chat, engine):
    words = [f"w{number} <i>" for number in range(6)]
    events = chat_events(["```py\n1 < 2\n```\n", *words])
    with engine.holding(sse_reply(events, stall_after=4)) as released:
        ask(chat)
        chat.until_text(".turn.assistant", "w1 <i>")
        assert "w5" not in chat.see(".turn.assistant").text
        assert chat.shown("#stop")
        chat.until_text("#status", "first token")
        released.set()
        chat.until_text(".turn.assistant .figures", "7 tokens")
    assert "w5 <i>" in chat.see(".turn.assistant .text").text
    assert "1 < 2" in chat.see(".turn.assistant pre").text
    assert not chat.all(".turn i")
    assert chat.violations() == []
    ask(chat, "And now?")
    chat.until(lambda: len(chat.all(".turn.assistant:not([aria-busy])")) == 2)
    sent = engine.asked[-1].json
    assert [each["role"] for each in sent["messages"]] == ["user", "assistant", "user"]
    assert sent["model"] == MODEL


def test_an_answer_can_be_stopped_and_the_engine_hears_of_it(chat, engine):
    with engine.holding(sse_reply(chat_events(["word "] * 9), stall_after=3)):
        ask(chat)
        chat.until_text(".turn.assistant", "word word")
        chat.click("#stop")
        chat.until_text("#status", "Stopped")
        until(lambda: engine.left)
        chat.until_text(".turn.assistant .figures", "stopped")
    chat.see("#send")


def test_who_waits_sees_their_place_in_the_queue(chat, gateway, engine):
    ben, *others = gateway.add_people(3)
    with engine.holding():
        answers = [ben.start(max_tokens=20) for _ in range(10)]
        answers += [each.start(max_tokens=20) for each in others]
        until(lambda: gateway.num_in_flight == 8 and gateway.num_waiting == 4)
        ask(chat)
        chat.until_text("#status", "1 request before yours")
        assert not chat.all(".turn.assistant .text:not(:empty)")
    assert {each.result().status_code for each in answers} == {200}
    chat.until_text(".turn.assistant .figures", "1 request went before")


def test_a_key_that_is_revoked_meanwhile_is_asked_for_again(chat, ada, gateway):
    ada.revoke()
    until(lambda: ada.get("/v1/models").status_code == 401)
    ask(chat)
    chat.until_text("#login .error", "does not work any more")


def test_ones_own_page_shows_limits_use_and_place(browser, gateway, engine):
    ada = gateway.add_person(daily_tokens=5000, max_in_flight=1)
    assert ada.ask(max_tokens=30).status_code == 200
    gateway.row(ada)
    browser.open(f"{gateway.url}/me")
    browser.fill("#key", ada.key)
    browser.click("#login form button")
    browser.until_text("#limits", "5,000")
    browser.until_text("#used", "tokens")
    browser.until_text("#days", "1")
    with engine.holding():
        answers = [ada.start(max_tokens=9) for _ in range(2)]
        browser.until_text("#now .standing", "next")
        assert browser.violations() == []
    assert {each.result().status_code for each in answers} == {200}
    browser.until_text("#now .standing", "Nothing under way")


@pytest.mark.parametrize("path", ["/chat", "/me"])
def test_they_fit_a_phone_and_are_dark_at_night(browser, gateway, ada, path):
    with (
        browser.size(360, 700),
        browser.preferring(prefers_color_scheme="dark"),
    ):
        browser.open(f"{gateway.url}{path}")
        browser.fill("#key", ada.key)
        browser.click("#login form button")
        browser.see("#page")
        assert not browser.is_too_wide
        assert browser.violations() == []
