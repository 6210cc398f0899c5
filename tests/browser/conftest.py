"""One browser and one gateway for all tests here, over one scripted engine."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from gateway_process import GatewayProcess, ScriptedEngine, gateway_process, until

from browser import Browser, chromium
from carpool.store.admin_key import AdminKeyStore

NUM_SEATS = 8
KV_TOKENS = 20_000


@pytest.fixture(scope="session")
def whole_session_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = os.environ.get("CARPOOL_TEST_CHROMIUM")
    if not program:
        pytest.skip("CARPOOL_TEST_CHROMIUM names no Chromium")
    beside = Path(program).with_name("chromedriver")
    driver = str(beside) if beside.exists() else shutil.which("chromedriver")
    if driver is None:
        pytest.skip(f"there is no chromedriver beside {program}, nor on the PATH")
    with chromium(program, driver, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="session")
def whole_session_engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(NUM_SEATS, KV_TOKENS).serving() as engine:
        yield engine


@pytest.fixture(scope="session")
def whole_session_gateway(
    whole_session_browser: Browser,
    whole_session_engine: ScriptedEngine,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[GatewayProcess]:
    """After the browser: without one, there is nothing to be started."""
    home = tmp_path_factory.mktemp("gateway")
    with gateway_process(whole_session_engine.url, home, "--admin-port", "0") as gateway:
        yield gateway


@pytest.fixture(scope="session")
def admin_key(whole_session_gateway: GatewayProcess) -> str:
    return AdminKeyStore(whole_session_gateway.store.database).renew().text


@pytest.fixture
def engine(whole_session_engine: ScriptedEngine) -> ScriptedEngine:
    whole_session_engine.forget()
    return whole_session_engine


@pytest.fixture
def gateway(engine: ScriptedEngine, whole_session_gateway: GatewayProcess) -> GatewayProcess:
    until(lambda: whole_session_gateway.is_idle)
    engine.forget()
    return whole_session_gateway


@pytest.fixture
def browser(whole_session_browser: Browser, gateway: GatewayProcess) -> Iterator[Browser]:
    """As one that was never here: nothing kept, no session."""
    browser = whole_session_browser
    driver = browser.driver
    driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
    for url in (gateway.url, gateway.admin_url):
        origin = {"origin": url, "storageTypes": "local_storage,session_storage"}
        driver.execute_cdp_cmd("Storage.clearDataForOrigin", origin)
    browser.open("about:blank")
    driver.get_log("browser")
    yield browser
    assert browser.complaints() == []


@pytest.fixture
def dashboard(browser: Browser, gateway: GatewayProcess, admin_key: str) -> Browser:
    """Logged in."""
    url = gateway.admin_url or ""
    answer = httpx.post(f"{url}/session", json={"key": admin_key}, headers={"origin": url})
    for name, value in answer.cookies.items():
        cookie = {"name": name, "value": value, "url": url, "httpOnly": True}
        browser.driver.execute_cdp_cmd("Network.setCookie", cookie)
    browser.open(url)
    browser.see("#seats .model")
    return browser
