"""Page: Chromium without a window, driven by selenium, for tests of the page that the server shows.

Everything but 127.0.0.1 is unknown to its resolver, and it notes every request that it makes.
Needs selenium, and Debian's packages chromium-driver and chromium-headless-shell (or chromium,
which takes more time).
"""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WAIT_S = 60.0
"""After this something hangs; beside other tests a browser may be slow."""
UNUSED = (
    *("SpareRendererForSitePerProcess", "IsolateOrigins", "site-per-process"),
    *("MediaRouter", "OptimizationHints", "Translate"),
)
"""What costs a processor, and shows nothing: processes ahead and for each site among others."""
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    *("--renderer-process-limit=1", "--process-per-site", "--disable-site-isolation-trials"),
    *("--disable-extensions", f"--disable-features={','.join(UNUSED)}"),
    "--hide-scrollbars",
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
LOGS = ("browser", "performance")
LOOKS = [
    ("light", 1280),
    ("dark", 360),
    pytest.param("dark", 1280, marks=pytest.mark.full_only),
    pytest.param("light", 360, marks=pytest.mark.full_only),
]
"""Color schemes and widths in which nothing may bar people."""
Found = TypeVar("Found")


def programs() -> tuple[str, str]:
    """Return the paths of browser and driver; skips the test where one is missing."""
    pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")
    browser = next(filter(None, map(shutil.which, CHROMIUM)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium here: apt-get install chromium-headless-shell chromium-driver")
    return browser, driver


class Page:
    """A browser at a server. Elements are named by CSS selectors."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver = driver
        self.url = url
        self.requests: list[str] = []

    def open(self, view: str = "chat", *, key: str | None = None) -> Self:
        """Load the page anew as a reader who was never here. `key` was typed already."""
        if not self.driver.current_url.startswith(self.url):
            self.driver.get(f"{self.url}/ui/icon.svg")  # the page would ask for the key
        self.run("localStorage.clear(); sessionStorage.clear()")
        if key is not None:
            self.run("sessionStorage.setItem('dovetail.key', arguments[0])", key)
        self.driver.get("about:blank")  # or only the hash would change
        self.driver.get(f"{self.url}/#{view}")
        return self

    def run(self, script: str, *args: Any) -> Any:
        """Return what a script returns."""
        return self.driver.execute_script(script, *args)

    def call(self, module: str, expression: str, *args: Any) -> Any:
        """Return an expression's value in which `m` is a module of the page, `a` the arguments."""
        return self.driver.execute_async_script(
            "const [path, expression, a, done] = arguments;"
            f"import(path).then((m) => done({expression}), (e) => done('failed: ' + e));",
            f"{self.url}/ui/{module}",
            expression,
            args,
        )

    def all(self, selector: str) -> list[Any]:
        """Return the elements that can be seen."""
        found = self.driver.find_elements("css selector", selector)
        return [one for one in found if one.is_displayed()]

    def wait(self, what: Callable[[], Found], wait_s: float = WAIT_S) -> Found:
        """Return the first true value of a function. Raises: TimeoutException"""
        from selenium.common.exceptions import StaleElementReferenceException
        from selenium.webdriver.support.wait import WebDriverWait

        ignored = [StaleElementReferenceException]
        wait = WebDriverWait(self.driver, wait_s, poll_frequency=0.05, ignored_exceptions=ignored)
        found: Found = wait.until(lambda _: what())
        return found

    def one(self, selector: str) -> Any:
        """Return an element once it can be seen."""
        return self.wait(lambda: (self.all(selector) or [None])[0])

    def text(self, selector: str) -> str:
        """Return the text of the last element that can be seen."""
        found = self.all(selector)
        return str(found[-1].text) if found else ""

    def click(self, selector: str) -> None:
        """Click the last element that can be seen, once there is one."""
        self.one(selector)
        self.all(selector)[-1].click()

    def write(self, selector: str, text: str) -> None:
        """Replace the text of a field, or choose in a list."""
        field = self.one(selector)
        if field.tag_name != "select":
            field.clear()
        field.send_keys(text)

    def size(self, width: int, height: int) -> None:
        """Set the size of what is seen."""
        facts = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", facts)

    def scheme(self, name: str) -> None:
        """Prefer light or dark."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def barriers(self) -> list[str]:
        """Return what bars people, as axe finds it: rules and elements. Skips without axe."""
        axe = pytest.importorskip("axe_core_python", reason="pip install axe-core-python")
        self.run((Path(axe.__file__).parent / "axe.min.js").read_text())
        script = "axe.run().then((found) => arguments[0](found.violations))"
        return [
            f"{one['id']} ({one['impact']}): {node['target']}"
            for one in self.driver.execute_async_script(script)
            for node in one["nodes"]
            if one["impact"] in ("moderate", "serious", "critical")
        ]

    def asked(self) -> list[str]:
        """Return the addresses of all requests so far, WebSockets as well. Mutates: self"""
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                self.requests.append(event["params"]["request"]["url"])
            elif event["method"] == "Network.webSocketCreated":
                self.requests.append(event["params"]["url"])
        return self.requests

    def complaints(self) -> list[str]:
        """Return what the browser's console says of faults since the last call, except that a file
        opened by `open` has no icon of its own."""
        log = self.driver.get_log("browser")
        faults = [entry["message"] for entry in log if entry["level"] == "SEVERE"]
        return [fault for fault in faults if "/favicon.ico " not in fault]


@contextmanager
def opened_browser(url: str) -> Iterator[Page]:
    """Give this process's browser for the server at an address. It is as new for each, because each
    address has a store of its own."""
    driver = _driver()
    for kind in LOGS:
        driver.get_log(kind)
    driver.set_script_timeout(WAIT_S)
    try:
        yield Page(driver, url)
    finally:
        driver.get("about:blank")
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@cache
def _driver() -> Any:
    """Return a browser, which ends with this process."""
    browser, program = programs()
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", dict.fromkeys(LOGS, "ALL"))
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(program))
    atexit.register(driver.quit)
    return driver
