"""A browser that is driven through the page, and watched: its console, its requests, its errors."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.referees import need

PATIENCE_S = 60
"""How long a test waits for what must be seen sooner or later, however slow the machine."""
_MODULES = ("lib/mask", "lib/mask_spec", "live/prometheus", "playground/time_saved")
_ARGUMENTS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb", "--font-render-hinting=none"),
)

# Before a page's own scripts: the key, and a watch over policy violations.
_WATCH = """
if (location.protocol.startsWith('http')) (() => {
window.seen = {violations: []};
document.addEventListener('securitypolicyviolation',
  (event) => seen.violations.push(event.violatedDirective));
const send = window.unwatched = window.fetch; // `window.answer` of a test stands in for it
window.fetch = (...what) => (window.answer ?? send)(...what);
})();
"""


def start_browser(profile: Path) -> webdriver.Chrome:
    """Debian's Chromium, headless, with a profile of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = need("chromium")
    for argument in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(need("chromedriver")))
    browser.set_script_timeout(PATIENCE_S)
    return browser


def waiting(browser: webdriver.Chrome) -> WebDriverWait[webdriver.Chrome]:
    """Return a wait for a condition. It goes on if the page draws an element anew meanwhile."""
    ignored = (AssertionError, StaleElementReferenceException)
    return WebDriverWait(browser, PATIENCE_S, poll_frequency=0.05, ignored_exceptions=ignored)


class Page:
    """The page in a browser. key: the API key that the tab holds from the start; None: none."""

    def __init__(self, browser: webdriver.Chrome, url: str, *, key: str | None = None) -> None:
        self.browser = browser
        self.url = url
        keep = f"sessionStorage.setItem('headroom-key', {key!r})" if key else "sessionStorage.clear()"
        store = f"if (location.protocol.startsWith('http')) {keep};"
        for script in getattr(browser, "scripts", ()):  # of a test that failed
            browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", {"identifier": script})
        self._scripts = [
            browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})["identifier"]
            for source in (store, _WATCH)
        ]
        browser.scripts = self._scripts
        browser.get_log("browser")
        self.size(1440, 1000)
        self.colours("light")
        browser.execute_cdp_cmd("Network.enable", {})

    def open(self, address: str = "") -> Self:
        """Load the page anew, with what follows the # in its address."""
        self.browser.get("about:blank")
        self.browser.get(f"{self.url}/{address}")
        return self

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        """Emulate the system's colour scheme, and a person who prefers less motion."""
        motion = {"name": "prefers-reduced-motion", "value": "reduce"}
        features = [{"name": "prefers-color-scheme", "value": scheme}, motion]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        """The first element under a selector that can be seen, as soon as there is one."""

        def seen(_: object) -> WebElement | None:
            return next((element for element in self.all(selector) if element.is_displayed()), None)

        return waiting(self.browser).until(seen, f"nothing to see under {selector}")

    def write(self, selector: str, text: str) -> None:
        """Type a text in place of what a field holds, as a person does; a line feed is the Enter key."""
        self.one(selector).send_keys(Keys.CONTROL, "a", Keys.NULL, Keys.DELETE, text)

    def button(self, text: str, within: str = "body") -> WebElement:
        """The button with this text or name."""

        def found(_: object) -> WebElement | None:
            buttons = [b for b in self.all(f"{within} button") if b.is_displayed()]
            return next((b for b in buttons if text in (b.text, b.get_attribute("aria-label"))), None)

        return waiting(self.browser).until(found, f"no button {text!r}")

    def until(self, holds: Callable[[], Any], message: str = "") -> Any:
        """What `holds` returns as soon as it is true."""
        return waiting(self.browser).until(lambda _: holds(), message or f"never true: {holds}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.browser.execute_script(script, *arguments)

    def next_frame(self) -> None:
        """Wait until what the page now knows is drawn."""
        self.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def evaluate(self, expression: str, *arguments: Any) -> Any:
        """The value of an expression over some of the page's own modules, and `arguments`."""
        names = [path.rpartition("/")[2] for path in _MODULES]
        source = f"""
            const done = arguments[arguments.length - 1];
            import(document.querySelector('script[type=module]').src).then(({{modules}}) => {{
              const [{", ".join(names)}] = {list(_MODULES)}.map((path) => modules[`${{path}}.js`]);
              done({expression});
            }}).catch((error) => done(String(error)));"""
        return self.browser.execute_async_script(source, *arguments)

    def screenshot(self, file: Path) -> None:
        """Write the whole page as PNG."""
        size = self.browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        request = {"format": "png", "clip": clip, "captureBeyondViewport": True}
        data = self.browser.execute_cdp_cmd("Page.captureScreenshot", request)["data"]
        file.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, but for answers that a test asked for."""
        lines = [
            entry for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]
        return [line["message"] for line in lines if "Failed to load resource" not in line["message"]]

    def check_and_leave(self) -> None:
        """Assert that nothing went wrong, that no request left the origin, and close the page."""
        loaded = self.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
        assert [name for name in loaded if not name.startswith((f"{self.url}/", "data:"))] == []
        assert self.run("return window.seen ? seen.violations : []") == []
        complaints = self.complaints()
        assert complaints == [], complaints
        self.browser.execute_cdp_cmd("Network.disable", {})  # ends an emulation
        self.browser.get("about:blank")
