"""Help for tests of pages in a browser."""

import json
from typing import Any

WAIT_S = 60


def show_at(browser: Any, width: int, scheme: str = "light") -> None:
    """Leave the page that is open, and set the width and the colors of the next."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    view = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", view)
    features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    media = [{"name": name, "value": value} for name, value in features.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})


def requests_of(browser: Any) -> list[str]:
    """Addresses that pages have asked for since the last call."""
    messages = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"].split("#")[0]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
        and message["params"]["documentURL"] != "about:blank"
    ]


def press(browser: Any, keys: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(keys).perform()


def chosen(browser: Any) -> int:
    """Position of the chosen episode in the list, from 0."""
    return int(
        browser.execute_script("return document.querySelector('[aria-selected=true]').dataset.at")
    )


def wait_for(browser: Any, script: str, *arguments: Any) -> Any:
    """Result of `script` as soon as it is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT_S, 0.05).until(
        lambda driver: driver.execute_script(script, *arguments)
    )


def text_of(browser: Any, css: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0]).textContent", css)
