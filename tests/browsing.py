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


def choose(browser: Any, label: str, value: str) -> None:
    """Choose a value of the list with this label."""
    browser.execute_script(
        """const select = document.querySelector(`select[aria-label="${arguments[0]}"]`);
        select.value = arguments[1]; select.dispatchEvent(new Event("change"));""", label, value,
    )  # fmt: skip


def page_width(browser: Any) -> int:
    """Width of what can be scrolled to, in pixels."""
    return browser.execute_script("return document.documentElement.scrollWidth")


def check_policy(browser: Any) -> None:
    """Foreign scripts, pictures and requests are blocked on the page that is open."""
    blocked = browser.execute_async_script(
        """const done = arguments[0], violated = [], url = "http://127.0.0.1:9/";
        addEventListener("securitypolicyviolation", (event) => {
          violated.push(event.effectiveDirective);
          if (violated.length === 4) done(violated);
        });
        const script = document.createElement("script");
        script.textContent = "window.hacked = 4";
        document.body.append(script);
        document.body.append(Object.assign(document.createElement("script"), { src: url }));
        document.body.append(Object.assign(new Image(), { src: url }));
        fetch(url).catch(() => {});"""
    )
    assert sorted(blocked) == ["connect-src", "img-src", "script-src-elem", "script-src-elem"]
    assert browser.execute_script("return window.hacked") is None
