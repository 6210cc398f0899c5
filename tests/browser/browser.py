"""A real browser on the gateway's pages, as somebody at a screen has it."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE_S = 15.0
POLL_S = 0.05
SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
AXE = Path(__file__).with_name("axe") / "axe.min.js"


class Browser:
    """`see` and `all` find what is shown by a CSS selector; `until` waits for anything."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def until(self, is_so: Any) -> Any:
        """What `is_so` returns once that is true. What it looks at may be redrawn meanwhile."""
        wait = WebDriverWait(
            self.driver,
            PATIENCE_S,
            poll_frequency=POLL_S,
            ignored_exceptions=[StaleElementReferenceException],
        )
        return wait.until(lambda driver: is_so())

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def shown(self, selector: str) -> list[WebElement]:
        return [each for each in self.all(selector) if each.is_displayed()]

    def see(self, selector: str) -> WebElement:
        return self.until(lambda: self.shown(selector))[0]

    def until_gone(self, selector: str) -> None:
        self.until(lambda: not self.shown(selector))

    def until_text(self, selector: str, text: str) -> None:
        self.until(lambda: any(text in each.text for each in self.shown(selector)))

    def click(self, selector: str) -> None:
        self.see(selector).click()

    def fill(self, selector: str, text: str) -> None:
        field = self.see(selector)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """To whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def tab_to(self, selector: str, most: int = 60) -> None:
        """By the keyboard alone."""
        for _ in range(most):
            self.press(Keys.TAB)
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
        raise AssertionError(f"{most} times Tab do not lead to {selector}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    @contextlib.contextmanager
    def size(self, width: int, height: int = 800) -> Iterator[None]:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    @contextlib.contextmanager
    def preferring(self, **features: str) -> Iterator[None]:
        """With the system's preferences, like prefers_color_scheme="dark"."""
        told = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": told})
        try:
            yield
        finally:
            self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    @property
    def is_too_wide(self) -> bool:
        """Whether one would have to scroll sideways."""
        return self.run("return document.documentElement.scrollWidth > window.innerWidth")

    def violations(self) -> list[str]:
        """What axe-core finds that is serious or worse, and where."""
        if not self.run("return typeof window.axe === 'object'"):
            self.run(AXE.read_text())
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document, {resultTypes: ['violations']}).then(done, (e) => done(String(e)));"
        )
        assert isinstance(found, dict), found
        return [
            f"{each['id']}: {node['target']} {node['failureSummary']}"
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def complaints(self) -> list[str]:
        """Of the browser since the last time: errors of scripts, and what the policy forbids."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE" and "Failed to load resource" not in entry["message"]
        ]

    def stored(self) -> str:
        """All that pages keep in the browser, but for cookies that scripts cannot see."""
        script = "return [{...localStorage}, {...sessionStorage}, document.cookie, location.href]"
        return json.dumps(self.run(script))


@contextlib.contextmanager
def chromium(program: str, driver_program: str, profile: Path) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for switch in (*SWITCHES, f"--user-data-dir={profile}", "--window-size=1300,900"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_program))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
