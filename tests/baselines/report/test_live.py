"""The page that follows a run, over HTTP on the loopback interface."""

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from processes import wait_for
from served import page_served

from flowzoo.baselines.report import live
from flowzoo.baselines.report.live import LivePage
from flowzoo.commands.line import parse
from flowzoo.commands.report import run as report
from flowzoo.errors import UsageError


@pytest.fixture
def server(make_run: Callable[..., Path], tmp_path: Path) -> Iterator[LivePage]:
    folder = make_run(tmp_path / "run", items=40, course=(0.4, 0.5, 0.6), finished=False)
    with page_served(LivePage(folder)) as server:
        yield server


def fetch(server: LivePage, path: str = "", host: str | None = None) -> str:
    request = urllib.request.Request(server.url + path)
    if host:
        request.add_header("Host", host)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_the_page_of_an_unfinished_run_asks_for_changes(server):
    page = fetch(server)
    assert "connect-src 'self'" in page
    assert "new EventSource(" in page
    assert server.url.startswith("http://127.0.0.1:")


def test_a_finished_run_asks_for_nothing(server):
    (server.run_folder / "summary.json").write_text("{}")
    page = fetch(server)
    assert "connect-src" not in page
    assert "new EventSource(" not in page


def changes_of(page: str) -> str:
    facts = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page)
    return f"changes?{json.loads(facts[1])['live']}"


def test_changes_are_told_to_every_page_when_the_run_has_written_more(server, monkeypatch):
    monkeypatch.setattr(live, "POLL_S", 0.05)
    monkeypatch.setattr(live, "LONGEST_WAIT_S", 0.2)
    before = fetch(server)
    assert fetch(server, changes_of(before)) == "data: same\n\n"
    with (server.run_folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 21, "reward/mean": 0.123}) + "\n")
    assert fetch(server, changes_of(before)) == "data: changed\n\n"
    after = fetch(server)
    assert "0.123" not in before
    assert "0.123" in after
    # Another tab still shows the earlier state.
    assert fetch(server, changes_of(before)) == "data: changed\n\n"
    assert fetch(server, changes_of(after)) == "data: same\n\n"


@pytest.mark.parametrize(("host", "status"), [("evil.example:80", 403), ("", 404)])
def test_other_hosts_and_paths_are_refused(server, host, status):
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(server, "" if host else "run.json", host)
    assert refused.value.code == status


def test_serving_takes_one_run_and_writes_no_file(make_run, tmp_path):
    for name in ("one", "two"):
        make_run(tmp_path / name, items=40, course=(0.4, 0.5, 0.6))
    for line, message in (
        ([str(tmp_path), "--serve"], "follows one run"),
        ([str(tmp_path / "one"), "--serve", "--out", "x.html"], "writes no file"),
    ):
        with pytest.raises(UsageError, match=message):
            report(parse(["report", *line]).command)


def test_more_than_may_wait_for_changes_are_answered_at_once(server, monkeypatch):
    monkeypatch.setattr(live, "MOST_WATCHING", 2)
    monkeypatch.setattr(live, "LONGEST_WAIT_S", 30.0)
    path = changes_of(fetch(server))
    before = threading.active_count()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(fetch, server, path) for _ in range(2)]
        wait_for(lambda: server.gauges()["page_watchers"] == 2)
        for _ in range(3):
            start = time.monotonic()
            assert fetch(server, path) == "data: same\n\n"
            assert time.monotonic() - start < 5
        assert threading.active_count() - before <= 4  # no thread for who waits
        (server.run_folder / "summary.json").write_text("{}")
        assert [done.result() for done in waiting] == ["data: changed\n\n"] * 2
    wait_for(lambda: server.gauges()["page_watchers"] == 0)
