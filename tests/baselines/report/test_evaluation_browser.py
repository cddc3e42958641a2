"""The pages of an evaluation and of a comparison in headless Chromium."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import (
    check_policy,
    choose,
    chosen,
    page_width,
    press,
    requests_of,
    show_at,
    text_of,
    wait_for,
)
from served import page_served

from flowzoo.baselines.report.evaluation.page import EvaluationServer, write_evaluation

pytestmark = pytest.mark.xdist_group("browser")

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "<!-- </bdi></div><style>body { display: none }</style> \x1b[31m \u202e \u2028 \ud800 end",
    '");window.hacked = 3;("',
)
Folders = dict[str, Path]


@pytest.fixture(scope="module")
def folders(
    make_evaluation: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Folders:
    """Two evaluations of the same problems, with hostile replies."""
    root = tmp_path_factory.mktemp("evaluations")
    return {
        name: make_evaluation(root / name, n=150, accuracy=accuracy, replies=HOSTILE)
        for name, accuracy in (("weak", 0.4), ("strong", 0.8))
    }


@pytest.fixture(scope="module")
def pages(folders: Folders) -> Folders:
    """The page of the first, and of its comparison with the second."""
    out = folders["weak"].parent
    write_evaluation(folders["weak"], out / "one.html")
    write_evaluation(folders["weak"], out / "both.html", against=folders["strong"])
    return {"one": out / "one.html", "both": out / "both.html"}


@pytest.fixture
def open_page(browser: Any, pages: Folders) -> Iterator[Callable[..., Any]]:
    """`open_page(name, width)`: the page, freshly opened; then: nothing went wrong."""
    beside: list[str] = []

    def load(name: str, width: int = 1280) -> Any:
        show_at(browser, width)
        browser.get(pages[name].as_uri())
        beside.append(pages[name].as_uri().removesuffix(".html"))
        wait_for(browser, "return document.querySelector('#detail .call')")
        return browser

    yield load
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.hacked") is None
    for address in requests_of(browser):
        assert address == "data:," or address.startswith(tuple(beside))


def episodes_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]


def press_filter(browser: Any, name: str) -> None:
    browser.find_element("css selector", f"[data-filter={name}]").click()


def count(browser: Any) -> int:
    return int(text_of(browser, "#count").split()[0].replace(",", ""))


def test_hostile_replies_are_shown_and_do_nothing(open_page):
    browser = open_page("one")
    browser.execute_script(
        "document.querySelectorAll('#detail summary').forEach((one) => one.click())"
    )
    shown = text_of(browser, "#detail")
    assert HOSTILE[0] in shown
    assert HOSTILE[2] in shown
    for code in ("U+001B", "U+202E", "U+2028", "U+D800"):
        assert code in shown
    elements = (
        "return ['script', 'style', 'img'].map((css) => document.querySelectorAll(css).length)"
    )
    assert browser.execute_script(elements) == [3, 1, 0]


def test_foreign_scripts_and_requests_are_blocked(browser, pages):
    browser.get(pages["one"].as_uri())
    check_policy(browser)


def test_filters_agree_with_the_episodes(open_page, folders):
    browser, episodes = open_page("one"), episodes_of(folders["weak"])
    assert count(browser) == 150
    press_filter(browser, "wrong")
    wrong = [one for one in episodes if one["score"] < 1]
    assert count(browser) == len(wrong)
    press_filter(browser, "parse")
    unread = [one for one in wrong if not all(call["strict"] for call in one["calls"])]
    assert count(browser) == len(unread)
    choose(browser, "Level", "2")
    level = [one for one in unread if one["level"] == 2]
    assert 0 < count(browser) == len(level) < len(unread)
    choose(browser, "Role", "aggregator")
    assert count(browser) == 0
    assert "No episode is chosen." in text_of(browser, "#detail")


def test_a_search_reads_the_replies_that_were_not_loaded(open_page, folders):
    browser, episodes = open_page("one"), episodes_of(folders["weak"])
    last = max(episodes, key=lambda one: int(one["problem"].rpartition(":")[2]))
    reply = last["calls"][0]["reply"].split("\n")[0]
    box = browser.find_element("id", "search")
    box.send_keys(reply)
    hits = [one for one in episodes if any(reply in call["reply"] for call in one["calls"])]
    wanted = f"{len(hits)} of 150 episodes"
    wait_for(
        browser, "return document.getElementById('count').textContent === arguments[0]", wanted
    )
    assert text_of(browser, "#detail mark") == reply
    box.clear()
    box.send_keys("Put the final answer in")
    wait_for(browser, "return document.getElementById('count').textContent.startsWith('0 of')")
    browser.find_element("xpath", "//button[text()='In prompts']").click()
    assert count(browser) == 150


def test_the_pager_leads_through_the_filtered_episodes(open_page):
    browser = open_page("one")
    press_filter(browser, "right")
    right = count(browser)
    following = browser.find_element("css selector", "[aria-label='Next episode']")
    previous = browser.find_element("css selector", "[aria-label='Previous episode']")
    assert not previous.is_enabled()
    following.click()
    assert text_of(browser, ".pager span") == f"2 of {right}"
    assert chosen(browser) == 1
    press(browser, "k")
    assert text_of(browser, ".pager span") == f"1 of {right}"
    browser.execute_script("document.getElementById('list').focus()")
    from selenium.webdriver.common.keys import Keys

    press(browser, Keys.END)
    assert not following.is_enabled()
    problem = text_of(browser, "[aria-selected=true]")
    heading = wait_for(browser, "return document.querySelector('#detail .said')?.textContent")
    assert problem.startswith(heading)


def test_a_level_of_the_table_shows_its_episodes(open_page, folders):
    browser = open_page("one")
    press_filter(browser, "wrong")
    browser.execute_script("document.querySelector('#levels tbody tr:nth-child(3) button').click()")
    assert count(browser) == sum(one["level"] == 3 for one in episodes_of(folders["weak"]))


def test_two_evaluations_are_side_by_side(open_page, folders):
    browser = open_page("both")
    weak, strong = (
        {one["problem"]: one["score"] for one in episodes_of(folders[name])}
        for name in ("weak", "strong")
    )
    expected = {
        "won": sum(score > strong[name] for name, score in weak.items()),
        "lost": sum(score < strong[name] for name, score in weak.items()),
        "bothright": sum(score >= 1 <= strong[name] for name, score in weak.items()),
        "bothwrong": sum(score < 1 > strong[name] for name, score in weak.items()),
    }
    assert sum(expected.values()) == 150
    for name, number in expected.items():
        press_filter(browser, name)
        assert count(browser) == number
        press_filter(browser, name)
    words = text_of(browser, "#difference .headline")
    assert f"{expected['won']} won, {expected['lost']} lost" in words
    press_filter(browser, "lost")
    wait_for(browser, "return document.querySelectorAll('#detail .side .call').length === 8")
    sides = browser.execute_script(
        """return [...document.querySelectorAll("#detail .side")].map((side) => [
          side.querySelector("h4").textContent, side.querySelector(".badge").textContent,
          side.getBoundingClientRect().top]);"""
    )
    assert [side[:2] for side in sides] == [["A: weak ", "wrong"], ["B: strong ", "right"]]
    assert sides[0][2] == sides[1][2]


@pytest.mark.parametrize("measured", [(), ("weak",), ("weak", "strong")])
def test_what_no_evaluation_measured_takes_no_place(measured, browser, folders, tmp_path):
    copies = {name: shutil.copytree(folder, tmp_path / name) for name, folder in folders.items()}
    for name in copies.keys() - set(measured):
        summary = json.loads((copies[name] / "summary.json").read_text())
        for usage in (summary["usage"], *summary["usage"]["roles"].values()):
            usage["latency"] = None
        (copies[name] / "summary.json").write_text(json.dumps(summary))
    show_at(browser, 1280)
    for against, sides in ((None, {"weak"}), (copies["strong"], set(copies))):
        write_evaluation(copies["weak"], tmp_path / "page.html", against=against)
        browser.get((tmp_path / "page.html").as_uri())
        wait_for(browser, "return document.querySelector('#roles th')")
        heads = browser.execute_script(
            "return [...document.querySelectorAll('main th')].map((one) => one.textContent)"
        )
        assert ("seconds a call" in heads, "seconds" in heads) == (bool(sides & set(measured)),) * 2
        assert {"accuracy", "own accuracy"} <= set(heads)


@pytest.mark.parametrize("name", ["one", "both"])
def test_a_phone_scrolls_in_one_direction_and_shows_one_episode(name, open_page):
    browser = open_page(name, 390)
    assert page_width(browser) <= 390
    row = browser.find_element("css selector", ".row")
    browser.execute_script("arguments[0].scrollIntoView()", row)
    row.click()
    assert browser.find_element("id", "detail").is_displayed()
    assert not browser.find_element("id", "list").is_displayed()
    assert page_width(browser) <= 390
    browser.find_element("css selector", ".back").click()
    assert browser.find_element("id", "list").is_displayed()


@pytest.mark.parametrize("change", ["missing", "other"])
def test_files_that_do_not_belong_to_the_page_are_named(change, browser, folders, tmp_path):
    write_evaluation(folders["weak"], tmp_path / "page.html")
    script = tmp_path / "page-episodes" / "0.js"
    if change == "missing":
        script.unlink()
    else:
        text = script.read_text()
        script.write_text(text.replace(text[17:33], "0" * 16))
    show_at(browser, 1280)
    browser.get((tmp_path / "page.html").as_uri())
    words = {"missing": "cannot be read: keep it beside", "other": "belongs to another page"}
    message = wait_for(browser, "return document.querySelector('#detail .bad')?.textContent")
    assert f"page-episodes/0.js {words[change]}" in message
    press(browser, "j" * 70)
    wait_for(browser, "return document.querySelector('#detail .call')")
    browser.get_log("browser")


def test_a_served_page_loads_its_transcripts(browser, folders):
    with page_served(EvaluationServer(folders["weak"], folders["strong"])) as server:
        show_at(browser, 1280)
        browser.get(server.url)
        wait_for(browser, "return document.querySelectorAll('#detail .side .call').length === 8")
        assert browser.get_log("browser") == []
        assert browser.execute_script("return window.hacked") is None
