"""The page in headless Chromium: from disk, offline, dark and light, by keyboard, on a phone."""

import json
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

from flowzoo.baselines.report.write import write_report

MakeRun = Callable[..., Path]
pytestmark = pytest.mark.xdist_group("browser")  # they share one, and its pages

HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>",
    "<!-- </bdi></div><style>body { display: none }</style>",
    "\x1b[31mred\x1b[0m \x00 \u202eesrever\u202c \u2028 \u2066 \ud800 \u200b end",
    "<a href='javascript:window.hacked = 3'>&lt;b&gt;</a> " + "long " * 20_000,
)
SHOWN = [
    {
        "name": "<i>", "title": HOSTILE[0], "role": "generator", "metric": "eval/reward/mean",
        "called_by": ["fall"], "at_most": 1.0,
        "cells": [["cell-0", "one", "shows"], ["cell-1", HOSTILE[1], "remedies"]],
    }
]  # fmt: skip
"""A failure that is there in every run of the matrix."""


Pages = Callable[[str], Path]
NAMES = [pytest.param("fallen", marks=pytest.mark.full), "hostile", "matrix"]


@pytest.fixture(scope="module")
def pages(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """A run of 10^4 episodes and one of 10^3, one of hostile replies, and a matrix of two cells.

    Made if asked for.
    """
    root = tmp_path_factory.mktemp("browser")
    falling = (0.45, 0.66, 0.70, 0.70, 0.50, 0.42, 0.40, 0.40)
    plans: dict[str, list[dict[str, Any]]] = {
        "large": [{"items": 1250, "course": falling, "unread": 0.3}],
        "fallen": [{"items": 125, "course": falling, "gradients": True, "unread": 0.3}],
        "hostile": [{"items": 40, "replies": HOSTILE, "course": (0.5,) * 6}],
        "matrix": [
            {"items": 40, "course": falling, "replies": HOSTILE},
            {"items": 40, "sharing": ("isolated",)},
        ],
    }

    def make(name: str) -> Path:
        page = root / f"{name}.html"
        if not page.exists():
            for number, plan in enumerate(plans[name]):
                make_run(root / name / f"cell-{number}" / "seed-0", **plan)
            if name == "matrix":
                (root / name / "failures.json").write_text(json.dumps(SHOWN))
            write_report([root / name], page)
        return page

    return make


@pytest.fixture
def open_page(browser: Any, pages: Pages) -> Iterator[Callable[..., Any]]:
    """`open_page(name, width, scheme)`: the page, freshly opened; then: nothing went wrong."""
    opened: set[str] = set()

    def load(name: str, width: int = 1280, scheme: str = "light") -> Any:
        address = pages(name).as_uri()
        opened.add(address)
        show_at(browser, width, scheme)
        browser.get(address)
        wait_for(browser, "return document.querySelectorAll('h2').length")
        return browser

    yield load
    assert browser.get_log("browser") == []
    assert set(requests_of(browser)) <= opened | {"data:,"}


def ground(browser: Any) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("name", NAMES)
def test_opens_from_disk_without_network_and_draws_all_figures(name, open_page):
    browser = open_page(name)
    drawn, figures = browser.execute_async_script(
        """const done = arguments[arguments.length - 1], end = performance.now() + 45000;
        const counts = () => [Object.keys(Chart.instances).length,
          document.querySelectorAll("canvas").length];
        (async () => {
          while (counts()[0] < counts()[1] && performance.now() < end) {
            for (let at = 0; at < document.body.scrollHeight; at += 400) {
              scrollTo({ top: at, behavior: "instant" });
              await new Promise((next) => setTimeout(next, 30));
            }
          }
          done(counts());
        })();"""
    )
    assert drawn == figures >= 3
    unnamed = "return document.querySelectorAll('canvas:not([aria-label]), button:empty').length"
    assert browser.execute_script(unnamed) == 0


def test_a_failure_stands_beside_its_remedy_with_its_moment(open_page):
    browser = open_page("matrix", 400)
    found = browser.execute_script(
        """const shown = document.querySelector("[data-failure]"), texts = (css) =>
          [...shown.querySelectorAll(css)].map((one) => one.textContent);
        return [texts("tbody th .badge"), texts("tbody td:nth-child(3)"),
          shown.querySelectorAll(".sparks polyline.there").length, texts(".side h4").length,
          document.documentElement.scrollWidth, shown.querySelector("h3").textContent];"""
    )
    assert found[:4] == [["the failure", "remedy"], ["1 of 1", "1 of 1"], 2, 2]
    assert found[4] <= 400
    assert HOSTILE[0] in found[5]
    assert browser.execute_script("return window.hacked") is None


def test_the_policy_blocks_requests_and_foreign_scripts(browser, pages):
    browser.get(pages("hostile").as_uri())
    check_policy(browser)


@pytest.mark.full
def test_searching_ten_thousand_episodes_takes_less_than_200_ms(open_page):
    browser = open_page("large")
    assert text_of(browser, "#count") == "10,000 of 10,000 episodes; 10,112 are saved"
    # Of the page's thread: how long it waits for a processor says nothing about the page.
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})

    def worked() -> float:
        rows = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return 1000 * next(row["value"] for row in rows if row["name"] == "TaskDuration")

    search = """const box = document.getElementById("search");
        box.value = arguments[0];
        box.dispatchEvent(new Event("input"));
        document.body.offsetHeight;  // layout counts
        return document.getElementById("count").textContent;"""
    for query, found in (
        ("e", "10,000"),
        ("Compute 777 +", "8"),
        ("I GIVE UP", None),
        ("\\q", "0"),
    ):
        before = worked()
        count = browser.execute_script(search, query)
        took = worked() - before
        assert found is None or count.startswith(f"{found} of 10,000")
        assert 0 < took < 200, (query, took)
    browser.execute_script(search, "")
    rows = "return document.querySelectorAll('.row').length"
    assert 5 < browser.execute_script(rows) < 60
    browser.execute_script("document.getElementById('list').scrollTop = 300000")
    positions = wait_for(
        browser,
        """const rows = [...document.querySelectorAll(".row")];
        const shown = rows.map((row) => Number(row.dataset.at));
        return Math.max(...shown) >= 5000 && shown;""",
    )
    assert 4990 <= min(positions) <= 5000 <= max(positions) < 5060


@pytest.mark.full
def test_filters_agree_with_the_episodes(open_page, pages):
    browser = open_page("fallen")
    episodes = [
        json.loads(line)
        for path in (pages("fallen").parent / "fallen").rglob("eval-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    choose(browser, "Step", "eval 70")
    last = episodes_of(pages("fallen").parent / "fallen", 70)
    browser.find_element("css selector", "[data-filter=wrong]").click()
    wrong = [one for one in last if one["score"] < 1]
    assert text_of(browser, "#count").startswith(f"{len(wrong)} of")
    browser.find_element("css selector", "[data-filter=parse]").click()
    both = [one for one in wrong if not all(call["strict"] for call in one["calls"])]
    assert text_of(browser, "#count").startswith(f"{len(both)} of")
    choose(browser, "Role", "aggregator")
    assert text_of(browser, "#count").startswith("0 of")
    assert len(episodes) == 1_000


def episodes_of(folder: Path, step: int) -> list[dict[str, Any]]:
    path = next(folder.rglob(f"eval-{step:06d}.jsonl"))
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.full
def test_the_browser_works_by_keyboard(open_page):
    from selenium.webdriver.common.keys import Keys

    browser = open_page("fallen")
    press(browser, "jjjk")
    assert chosen(browser) == 2
    press(browser, "/")
    assert browser.switch_to.active_element.get_attribute("id") == "search"
    press(browser, "compute 12")
    assert text_of(browser, "#count").split()[0] not in ("1,112", "0")
    assert "Compute 12" in text_of(browser, "#detail")
    assert text_of(browser, "#detail mark").lower() == "compute 12"
    press(browser, Keys.ESCAPE)
    assert text_of(browser, "#count").startswith("1,112 of 1,112 episodes")
    press(browser, Keys.ESCAPE)
    assert browser.switch_to.active_element.get_attribute("id") == "list"
    press(browser, Keys.END)
    assert chosen(browser) == 1_111
    press(browser, Keys.HOME)
    assert chosen(browser) == 0
    press(browser, Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "detail"


def test_a_click_on_a_chart_shows_the_episodes_of_the_nearest_step(open_page):
    browser = open_page("fallen")
    from selenium.webdriver import ActionChains

    drawn = "return Boolean(Chart.getChart(document.querySelector('#accuracy canvas')))"
    wait_for(browser, drawn)
    canvas = browser.find_element("css selector", "#accuracy canvas")
    offset = """const canvas = arguments[0], x = Chart.getChart(canvas).scales.x;
        canvas.scrollIntoView({ block: "center", behavior: "instant" });
        return Math.round(x.getPixelForValue(arguments[1]) - canvas.clientWidth / 2);"""
    moment = "return document.querySelector('select[aria-label=Step]').value === arguments[0]"
    for step, nearest in ((1, "eval 0"), (31, "eval 30"), (69, "eval 70")):
        x = browser.execute_script(offset, canvas, step)
        ActionChains(browser).move_to_element_with_offset(canvas, x, 0).click().perform()
        assert wait_for(browser, moment, nearest)
    count = browser.execute_script("return document.getElementById('count').textContent")
    assert count.startswith("125 of ")


GROUPS = """const table = document.querySelector(".group-table table"), texts = (css) =>
  [...table.querySelectorAll(css)].map((node) => node.textContent);
  return [texts("tbody tr").length, texts(".reply").length, texts("tbody .badge"),
    document.querySelector(".group-table .note").textContent,
    [...document.querySelectorAll("#groups select option")].map((option) => option.textContent)];"""


@pytest.mark.parametrize("width", [1300, 390])
def test_training_groups_show_rewards_and_advantages_and_lead_to_episodes(width, open_page):
    from selenium.webdriver.common.keys import Keys

    browser = open_page("hostile", width)
    rows, replies, silent, note, steps = browser.execute_script(GROUPS)
    assert (rows, replies) == (32, 64)  # 16 problems, three generators and an aggregator
    assert {text.rstrip("01") for text in silent} == {
        "all rewards are ",
        "alone, nothing to compare",
    }
    assert len(silent) == 8  # of four problems, both roles
    assert note.startswith("The replies of step 50, by problem and role: reward and, below it,")
    assert steps == [f"step {step}" for step in (50, 40, 30, 20, 10)]
    choose(browser, "Step of the groups", "20")
    browser.execute_script("document.querySelectorAll('.group-table .reply')[4].focus()")
    label = browser.switch_to.active_element.get_attribute("aria-label")
    press(browser, Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "detail"
    assert "train episode of step 20" in text_of(browser, "#detail")
    agent, _, words = label.partition(": ")
    assert agent in text_of(browser, "#detail")
    assert words.split(", ")[1].split(";")[0] in text_of(browser, "#detail")
    assert browser.find_element("id", "detail").is_displayed()
    assert page_width(browser) <= width
    assert browser.execute_script("return window.hacked") is None


def test_hostile_replies_are_shown_and_do_nothing(open_page):
    browser = open_page("hostile")
    elements = "return ['script', 'style', 'img', 'a[href^=javascript]'].map((css) => document.querySelectorAll(css).length)"  # noqa: E501
    before = browser.execute_script(elements)
    shown = ""
    for _ in range(4):
        for button in browser.find_elements("css selector", "#detail button"):
            browser.execute_script("arguments[0].click()", button)
        shown += text_of(browser, "#detail")
        press(browser, "j")
    assert HOSTILE[0] in shown
    assert HOSTILE[1] in shown
    assert HOSTILE[3] in shown
    for code in ("U+001B", "U+0000", "U+202E", "U+202C", "U+2028", "U+2066", "U+D800", "U+200B"):
        assert code in shown
    for hidden in "\x00\x1b\u202e\u2028\u2066\u200b":
        assert hidden not in shown
    assert browser.execute_script(elements) == before == [3, 1, 0, 0]
    assert browser.execute_script("return window.hacked") is None
    isolated = "return getComputedStyle(document.querySelector('#detail .said')).unicodeBidi"
    assert "isolate" in browser.execute_script(isolated)


def test_dark_and_light_follow_the_system_and_the_switch(open_page):
    dark = ground(open_page("hostile", scheme="dark"))
    browser = open_page("hostile", scheme="light")
    light = ground(browser)
    assert dark != light
    button = browser.find_element("id", "theme")
    button.click()
    assert (button.text, ground(browser)) == ("Colors: light", light)
    button.click()
    assert (button.text, ground(browser)) == ("Colors: dark", dark)
    browser.refresh()
    assert ground(browser) == dark
    browser.find_element("id", "theme").click()
    assert ground(browser) == light


@pytest.mark.parametrize("name", NAMES)
def test_a_phone_scrolls_in_one_direction(name, open_page):
    browser = open_page(name, width=390)
    assert page_width(browser) <= 390


@pytest.mark.parametrize("width", [1200, 800])
def test_the_navigation_is_not_cut(width, open_page):
    browser = open_page("hostile", width)
    ends, hidden = browser.execute_script(
        """const bar = document.querySelector("#contents div");
        const links = [...bar.querySelectorAll("a")];
        links.at(-1).click();
        const last = document.getElementById("provenance-title").getBoundingClientRect();
        return [links.map((link) => link.getBoundingClientRect().right),
          last.top < bar.getBoundingClientRect().bottom];"""
    )
    assert len(ends) >= 9
    assert max(ends) <= width
    assert not hidden


def test_the_matrix_shows_the_budgets_of_compared_cells(open_page):
    browser = open_page("matrix")
    assert text_of(browser, "#budgets tbody tr td:nth-of-type(3)") == "1"


@pytest.mark.full
@pytest.mark.parametrize("effect", [True, False])
def test_a_run_that_did_not_measure_its_updates_says_so(browser, make_run, tmp_path, *, effect):
    run = make_run(tmp_path / "run", items=10)
    record = json.loads((run / "run.json").read_text("utf-8"))
    record["settings"]["update_effect"] = effect
    (run / "run.json").write_text(json.dumps(record))
    write_report([run], tmp_path / "page.html")
    browser.get((tmp_path / "page.html").as_uri())
    wait_for(browser, "return document.querySelectorAll('h2').length")
    assert ("was not measured (--no-update-effect)" in text_of(browser, "#learner")) != effect


@pytest.mark.parametrize(
    ("steps", "said"), [(2, "The first measured step →"), (8, "first 4"), (21, "first 10")]
)
def test_the_ends_of_a_short_run_share_no_step(browser, make_run, tmp_path, steps, said):
    run = make_run(tmp_path / "run", items=5, course=(0.5, 0.5), every=steps)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {"mu_k/generator": float(row["step"])} if row["step"] else row for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_report([run], tmp_path / "page.html")
    browser.get((tmp_path / "page.html").as_uri())
    wait_for(browser, "return document.querySelector('#groups table')")
    assert said in text_of(browser, "#groups .framed > .note")
    ends = {2: "1 → 2", 8: "2.5 → 6.5", 21: "5.5 → 16.5"}
    assert text_of(browser, "#groups tbody td") == ends[steps]


@pytest.mark.full
def test_a_curve_of_nothing_but_zeros_has_an_axis_from_zero(open_page):
    browser = open_page("fallen")
    choose(browser, "Metric", "grad/spike/shared")
    metrics = browser.find_element("css selector", "select[aria-label=Metric]")
    browser.execute_script("arguments[0].scrollIntoView()", metrics)
    found = wait_for(
        browser,
        """const chart = Chart.getChart(document.querySelector("#metrics canvas"));
        const heights = chart?.data.datasets.flatMap((one) => one.data.map((point) => point.y));
        return heights?.length && heights.every((y) => y === 0) && chart.scales.y
          && [chart.scales.y.min, chart.scales.y.max];""",
    )
    assert found == [0, 1]


@pytest.mark.full
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_charts_that_did_not_change_are_folded_into_a_list_of_their_values(
    width, scheme, open_page
):
    from selenium.webdriver.common.keys import Keys

    browser = open_page("fallen", width, scheme)
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('figcaption b')].map((one) => one.textContent)"
    )
    assert {"Accuracy of the team", "Own accuracy", "Read by the strict parser"} < set(drawn)
    for chart, value in {
        "#roles": "Read by the lenient parser = 100.0\u00a0%",
        "#gradients": "Gradient spikes = 0",
        "#groups": "Inflation Fₖ = 1.1",
        "#facts-of-episodes": "contested = 0.3",
        "#learner": "Effective sample size of ratios = 0.99",
    }.items():
        # It is text of the page while it is closed, so that the browser's own search opens it.
        listed = f"{chart} details.steady:not([open])"
        assert value in text_of(browser, listed)
        assert text_of(browser, f"{listed} summary").endswith("that did not change")
        assert value.split(" = ")[0] not in drawn
    first = browser.find_element("css selector", "#roles details.steady li")
    assert not first.is_displayed()
    browser.execute_script("document.querySelector('#roles .steady summary').focus()")
    press(browser, Keys.ENTER)
    assert first.is_displayed()
    assert first.rect["width"] <= width
    assert page_width(browser) <= width


def test_the_matrix_leads_to_its_runs_and_back(open_page, pages):
    browser = open_page("matrix")
    link = browser.find_element("css selector", "#runs a")
    target = link.get_attribute("href")
    browser.execute_script("arguments[0].click()", link)
    wait_for(browser, "return document.querySelector('#top a')?.textContent === '‹ All runs'")
    assert Path(target.removeprefix("file://")).parent == pages("matrix").parent / "matrix-runs"
    browser.find_element("css selector", "#top a").click()
    wait_for(browser, "return document.querySelector('h1')?.textContent.startsWith('matrix')")
    browser.get_log("performance")  # the run's page is no request to anywhere else
