"""Cost of the page of an evaluation: writing it, and its first paint, filters and transcripts.

    python -m benchmarks.evaluation_page --out docs/data/evaluation-page.json

Plays evaluations of scripted policies with replies of some hundred characters, writes the page of
one and of a comparison, and opens both from disk in headless Chromium.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from shutil import which
from statistics import median
from typing import Any

from benchmarks.harness.record import write_table
from flowzoo.baselines.report.evaluation.page import write_evaluation
from flowzoo.cli import main as flowzoo

COMMAND = "python -m benchmarks.evaluation_page --out docs/data/evaluation-page.json"
COLUMNS = ("page of", "written, s (of CPU)", "page, MB", "files, MB", "first paint, ms",
           "first transcript, ms", "a filter, ms (most)", "a transcript, ms (most)",
           "first search, ms", "next search, ms")  # fmt: skip
TIMES = 5  # openings of a page
FILLER = " ".join(f"Step {number} checks the sum of the terms again." for number in range(12))

SHOWN = """new MutationObserver((_, observer) => {
  if (!document.querySelector("#detail .call")) return;
  window.shownAt = performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true });"""
"""Notes when the first transcript is there."""
PAINT = """const paint = performance.getEntriesByName("first-contentful-paint")[0];
return paint && window.shownAt ? [paint.startTime, window.shownAt] : null;"""
FILTER = """const took = [];
const chips = [...document.querySelectorAll("[data-filter]")];
for (const chip of chips.flatMap((chip) => [chip, chip])) {  // on, and off again
  const began = performance.now();
  chip.click();
  document.body.offsetHeight;  // layout counts
  took.push(performance.now() - began);
}
return took;"""
OPEN = """const done = arguments[1], list = document.getElementById("list");
list.scrollTop = 60 * arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => {
  const detail = document.getElementById("detail"), began = performance.now();
  document.querySelector(`.row[data-at="${arguments[0]}"]`).click();
  const wait = () => (detail.querySelector(".call")
    ? done(performance.now() - began) : setTimeout(wait, 1));
  wait();
}));"""
SEARCH = """const done = arguments[1], box = document.getElementById("search");
const began = performance.now();
box.value = arguments[0];
box.dispatchEvent(new Event("input"));
const wait = () => (document.getElementById("count").textContent.includes("searching")
  ? setTimeout(wait, 1) : done(performance.now() - began));
wait();"""


def browser() -> Any:
    """Headless Chromium."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    session = webdriver.Chrome(options=options, service=Service(which("chromedriver")))
    session.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": SHOWN})
    session.set_script_timeout(120)
    return session


def play(folder: Path, episodes: int, accuracy: float) -> Path:
    """An evaluation whose replies have a usual length."""
    command = ["eval", "voting", "--policy", f"scripted:{accuracy}", "--n", str(episodes)]
    if flowzoo([*command, "--options", "level=1-3", "--out", str(folder)]):
        raise SystemExit("the evaluation failed")
    path = folder / "episodes.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for call in (call for row in rows for call in row["calls"]):
        call["reply"] += f"\n{FILLER}"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def opened(session: Any, page: Path) -> list[float]:
    """Milliseconds until the first paint, and until the first transcript is there."""
    session.get("about:blank")
    session.get(page.as_uri())
    while not (times := session.execute_script(PAINT)):
        time.sleep(0.05)
    return times


def measure(session: Any, page: Path, episodes: int) -> list[str]:
    """Milliseconds in the browser, as cells of the table."""
    paints = [opened(session, page) for _ in range(TIMES)]
    filters = session.execute_script(FILTER)
    step = episodes // 41
    opens = [session.execute_async_script(OPEN, step * n) for n in range(1, 41)]
    searches = [session.execute_async_script(SEARCH, text) for text in ("Step 3", "step 11 checks")]
    return [
        *(f"{median(times):.0f}" for times in zip(*paints, strict=True)),
        *(f"{median(times):.0f} ({max(times):.0f})" for times in (filters, opens)),
        *(f"{took:.0f}" for took in searches),
    ]


def written(folder: Path, out: Path, against: Path | None) -> list[str]:
    """Seconds to write the page and sizes of its parts, as cells of the table."""
    wall, cpu = time.perf_counter(), time.process_time()
    page, beside = write_evaluation(folder, out, against=against)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    files = sum(path.stat().st_size for path in beside.glob("*.js"))
    sizes = (f"{size / 1e6:.1f}" for size in (page.stat().st_size, files))
    return [f"{wall:.1f} ({cpu:.1f})", *sizes]


def main() -> int:
    """Measure both pages and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        first = play(root / "first", options.episodes, 0.6)
        second = play(root / "second", options.episodes, 0.65)
        session = browser()
        for number, (page, against) in enumerate((("an evaluation", None), ("two", second))):
            out = root / f"{number}.html"
            cells = written(first, out, against)
            rows.append([page, *cells, *measure(session, out, options.episodes)])
        session.quit()
    write_table(options.out, COMMAND, COLUMNS, rows, episodes=options.episodes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
