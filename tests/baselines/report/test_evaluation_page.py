"""The page of an evaluation and of a comparison: figures, files, command, server."""

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for
from served import page_served

from flowzoo.baselines.report import live
from flowzoo.baselines.report.evaluation.data import read_evaluation, read_evaluations
from flowzoo.baselines.report.evaluation.facts import comparison_facts, evaluation_facts
from flowzoo.baselines.report.evaluation.page import (
    FILE_EPISODES,
    EvaluationServer,
    one_line,
    pack_files,
    write_evaluation,
)
from flowzoo.baselines.report.live import LivePage
from flowzoo.baselines.report.local import LocalPage
from flowzoo.cli import main
from flowzoo.commands.line import parse
from flowzoo.commands.report import run as report
from flowzoo.envs.records import Usage
from flowzoo.errors import UsageError

MakeEvaluation = Callable[..., Path]


@pytest.fixture(scope="module")
def pair(
    make_evaluation: MakeEvaluation, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """Two evaluations of 60 problems with two samples each."""
    root = tmp_path_factory.mktemp("pair")
    weak = make_evaluation(root / "weak", n=60, samples=2, accuracy=0.4)
    return weak, make_evaluation(root / "strong", n=60, samples=2, accuracy=0.8)


def content_of(script: str) -> tuple[str, int, dict[str, Any]]:
    """Stamp, number and episodes of a script of transcripts."""
    call = re.fullmatch(r"flowzooEpisodes\((.*)\);\n", script, re.DOTALL)
    assert call is not None
    return tuple(json.loads(f"[{call[1]}]"))  # type: ignore[return-value]


def test_levels_and_lengths_add_up_to_all_episodes(pair):
    facts = evaluation_facts(read_evaluation(pair[0]))
    assert [row["level"] for row in facts["levels"]] == ["1", "2", "3"]
    assert [row["problems"] for row in facts["levels"]] == [20, 20, 20]
    total = sum(row["accuracy"] * row["episodes"] for row in facts["levels"])
    assert total / 120 == pytest.approx(facts["accuracy"])
    for role, calls in (("generator", 360), ("aggregator", 120)):
        rows = [row for row in facts["lengths"] if row["role"] == role]
        assert (len(rows), sum(row["replies"] for row in rows)) == (5, calls)
        assert all(one["high"] < other["low"] for one, other in pairwise(rows))
        assert {row["unit"] for row in rows} == {"tokens"}
        for name in ("role_score", "strict", "truncated"):
            rates = [row["rates"][name] for row in rows]
            counts = [row["replies"] for row in rows]
            whole = sum(rate * of for (rate, *_), of in zip(rates, counts, strict=True)) / calls
            assert whole == pytest.approx(facts["roles"][role][name])
            assert all(low <= rate <= high for rate, low, high in rates)


def test_scores_beyond_one_have_a_normal_interval(pair):
    data = read_evaluation(pair[0])
    paid = [replace(record, score=3.0 + number % 2) for number, record in enumerate(data.records)]
    row = evaluation_facts(replace(data, records=paid))["lengths"][0]
    mean, low, high = row["rates"]["score"]
    assert 3 <= low <= mean <= high <= 4


def test_replies_without_token_counts_are_measured_in_characters(pair):
    data = read_evaluation(pair[0])
    records = [
        replace(record, calls=tuple(replace(call, usage=None) for call in record.calls))
        for record in data.records
    ]
    rows = evaluation_facts(replace(data, records=records))["lengths"]
    assert {row["unit"] for row in rows} == {"characters"}
    longest = max(len(call.reply) for record in records for call in record.calls)
    assert max(row["high"] for row in rows) == longest


@pytest.mark.parametrize(
    ("counts", "bins"),
    [
        ({3: 290, 4: 24, 5: 184, 9: 2}, [(3, 3, 290), (4, 4, 24), (5, 9, 186)]),
        ({1: 2, 2: 7, 3: 100}, [(1, 3, 109)]),
        ({1: 4, 2: 5}, [(1, 2, 9)]),
        ({1: 25, 2: 4, 3: 25}, [(1, 1, 25), (2, 3, 29)]),
        ({7: 3}, [(7, 7, 3)]),
    ],
)
def test_replies_of_one_length_share_a_bin_and_few_join_their_neighbor(counts, bins, pair):
    data = read_evaluation(pair[0])
    record = data.records[0]
    (call,) = (call for call in record.calls if call.role == "aggregator")
    records = [
        replace(record, calls=(replace(call, usage=Usage(40, size)),))
        for size, count in counts.items()
        for _ in range(count)
    ]
    summary = {**data.summary, "roles": {"aggregator": {}}}
    rows = evaluation_facts(replace(data, records=records, summary=summary))["lengths"]
    assert [(row["low"], row["high"], row["replies"]) for row in rows] == bins


def test_the_comparison_counts_problems_won_and_lost(pair):
    weak, strong = map(read_evaluation, pair)
    facts = comparison_facts(weak, strong)
    paired, levels = facts["paired"], facts["levels"]
    assert paired["difference"] == pytest.approx(
        weak.summary["accuracy"] - strong.summary["accuracy"]
    )
    assert paired["interval"][1] < 0 < paired["lost"] - paired["won"]
    for name in ("problems", "won", "lost", "tied"):
        assert sum(row[name] for row in levels) == paired[name]
    assert comparison_facts(strong, weak)["paired"]["won"] == paired["lost"]


def test_an_evaluation_that_goes_on_has_figures_of_what_is_there(pair, tmp_path):
    shutil.copy(pair[0] / "latencies.jsonl", tmp_path)
    lines = (pair[0] / "episodes.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "episodes.jsonl").write_text("".join(lines[:50]) + lines[50][:80])
    data = read_evaluation(tmp_path)
    facts = evaluation_facts(data)
    assert (facts["episodes"], facts["finished"], facts["protocol_line"]) == (50, False, None)
    assert facts["usage"]["latency"]["median"] == pytest.approx(0.625)
    # The slowest of three voters, 0.75, and the aggregator after them, 1.
    assert facts["usage"]["critical_path"] == pytest.approx({"median": 1.75, "p95": 1.75})
    with pytest.raises(UsageError, match="is not finished: repeat its command"):
        comparison_facts(data, read_evaluation(pair[1]))
    (tmp_path / "episodes.jsonl").write_text("")
    with pytest.raises(UsageError, match="has no episodes"):
        read_evaluation(tmp_path)


def test_every_episode_is_in_the_index_and_in_one_file(pair):
    data = read_evaluation(pair[0])
    index, scripts = pack_files([data])
    contents = [content_of(script) for script in scripts]
    assert len(scripts) == index["files"] == -(-120 // FILE_EPISODES)
    assert [(stamp, number) for stamp, number, _ in contents] == [
        (index["stamp"], number) for number in range(len(scripts))
    ]
    for record, row in zip(data.records, index["items"], strict=True):
        problem, text, _, level, file, first, [[[sample, score, _, _, flags]]] = row
        packed = contents[file][2]
        kind, step, name, *_ = packed["episodes"][first]
        assert (packed["texts"][kind], packed["texts"][name]) == ("sample", record.problem)
        assert f"{index['texts'][problem]}#{sample}" == record.episode
        assert (step, score, index["texts"][level]) == (sample, record.score, str(record.level))
        assert index["texts"][text] == one_line(record.text)
        for role, flag in zip(index["roles"], flags, strict=True):
            calls = [call for call in record.calls if call.role == role]
            assert bool(flag & 1) == bool(calls)
            assert bool(flag & 2) == any(not call.strict for call in calls)
            assert bool(flag & 4) == any(call.finish == "length" for call in calls)
            assert bool(flag & 8) == any(call.role_score < 1 for call in calls)


def test_a_comparison_has_both_sides_of_a_problem_in_one_file(pair):
    index, scripts = pack_files([read_evaluation(folder) for folder in pair])
    contents = [content_of(script)[2] for script in scripts]
    assert len(index["items"]) == 60
    for problem, *_, file, first, sides in index["items"]:
        assert [len(side) for side in sides] == [2, 2]
        episodes = contents[file]["episodes"][first : first + 4]
        names = {contents[file]["texts"][episode[2]] for episode in episodes}
        assert names == {index["texts"][problem]}
        assert [episode[6] for episode in episodes] == [row[1] for side in sides for row in side]


def test_evaluations_of_one_name_are_named_by_their_paths(pair, tmp_path):
    copies = [shutil.copytree(pair[0], tmp_path / name / "copy") for name in "ab"]
    assert [data.name for data in read_evaluations(copies)] == ["a/copy", "b/copy"]
    assert [data.name for data in read_evaluations(pair)] == ["weak", "strong"]
    assert [data.name for data in read_evaluations([pair[0]])] == ["weak"]


def test_texts_of_the_index_are_short_lines():
    assert one_line("a\n b\t c") == "a b c"
    assert len(one_line("word " * 1000)) == 161


def test_the_command_writes_a_page_and_its_transcripts(pair, capsys, tmp_path):
    weak, strong = pair
    assert main(["report", str(weak)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"report  {weak / 'report.html'}",
        f"        and its transcripts in {weak / 'report-episodes'}",
    ]
    assert main(["report", str(weak), "--against", str(strong)]) == 0
    assert (weak / "against-strong.html").read_text().startswith("<!doctype html>")
    out = tmp_path / "new" / "page.html"
    assert main(["report", str(weak), "--out", str(out)]) == 0
    assert sorted(path.name for path in (out.parent / "page-episodes").iterdir()) == [
        "0.js",
        "1.js",
    ]
    (out.parent / "page-episodes" / "notes.js").touch()
    assert main(["report", str(weak), "--out", str(out), "--episodes", "5"]) == 0
    names = sorted(path.name for path in (out.parent / "page-episodes").iterdir())
    assert names == ["0.js", "notes.js"], "a file of the longer page is gone, another is left alone"
    capsys.readouterr()
    assert main(["report", str(weak), "--out", str(tmp_path / "bare.html"), "--episodes", "0"]) == 0
    assert capsys.readouterr().out == f"report  {tmp_path / 'bare.html'}\n"
    assert not (tmp_path / "bare-episodes").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{weak}", "{strong}"], "compare two with --against"),
        (["{weak}", "--against", "{weak}/.."], "must be the directory of an evaluation"),
        (["{weak}", "--png", "plots"], "`png` and `overview` are for runs"),
        (["{weak}/..", "--against", "{weak}"], "compares two evaluations"),
        (["{weak}", "--serve", "--out", "x.html"], "writes no file"),
    ],
)
def test_mistakes_are_named(arguments, message, pair, capsys):
    places = {"weak": pair[0], "strong": pair[1]}
    assert main(["report", *(word.format_map(places) for word in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_other_problems_and_a_file_in_the_way_are_refused(pair, make_evaluation, tmp_path):
    other = make_evaluation(tmp_path / "other", n=10)
    with pytest.raises(UsageError, match="is of other problems"):
        write_evaluation(pair[0], tmp_path / "page.html", against=other)
    (tmp_path / "page-episodes").touch()
    with pytest.raises(UsageError, match="page-episodes exists and is a file"):
        write_evaluation(other, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.fixture
def server(pair: tuple[Path, Path]) -> Iterator[EvaluationServer]:
    with page_served(EvaluationServer(pair[0], pair[1])) as server:
        yield server


def fetch(server: LocalPage, path: str = "", host: str | None = None) -> str:
    request = urllib.request.Request(server.url + path)
    if host:
        request.add_header("Host", host)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def test_the_page_is_served_with_its_transcripts_to_this_machine_alone(server, pair):
    assert server.url.startswith("http://127.0.0.1:")
    assert "weak against strong" in fetch(server)
    script = f"{server.scripts}/0.js"
    assert f'"folder":"{server.scripts}"' in fetch(server)
    assert content_of(fetch(server, script))[1] == 0
    # Other sites' pages may load scripts of any address that they can guess.
    for path in (f"{server.scripts}/99.js", f"{script}?x", "episodes/0.js", "0.js", "run.json"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(server, path)
        assert refused.value.code == 404
    for path in ("", script):
        with pytest.raises(urllib.error.HTTPError) as refused:
            fetch(server, path, "evil.example:80")
        assert refused.value.code == 403


def test_a_served_page_is_built_again_when_the_evaluation_has_changed(make_evaluation, tmp_path):
    folder = make_evaluation(tmp_path / "grows", n=6)
    with page_served(EvaluationServer(folder, None)) as server:
        before = server.answer("/")
        assert before == server.answer("/")
        make_evaluation(tmp_path / "whole", n=8)
        for name in ("episodes.jsonl", "summary.json", "latencies.jsonl"):
            (folder / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        after = server.answer("/")
    assert before is not None
    assert after is not None
    assert '"episodes":6' in before.text
    assert '"episodes":8' in after.text


@pytest.fixture
def live_server(make_run: Callable[..., Path], tmp_path: Path) -> Iterator[LivePage]:
    folder = make_run(tmp_path / "run", items=40, course=(0.4, 0.5, 0.6), finished=False)
    with page_served(LivePage(folder)) as live_server:
        yield live_server


def test_the_page_of_an_unfinished_run_asks_for_changes(live_server):
    page = fetch(live_server)
    assert "connect-src 'self'" in page
    assert "new EventSource(" in page
    assert live_server.url.startswith("http://127.0.0.1:")


def test_a_finished_run_asks_for_nothing(live_server):
    (live_server.run_folder / "summary.json").write_text("{}")
    page = fetch(live_server)
    assert "connect-src" not in page
    assert "new EventSource(" not in page


def changes_of(page: str) -> str:
    facts = re.search(r'<script type="application/json" id="facts">(.*?)</script>', page)
    return f"changes?{json.loads(facts[1])['live']}"


def test_changes_are_told_to_every_page_when_the_run_has_written_more(live_server, monkeypatch):
    monkeypatch.setattr(live, "POLL_S", 0.05)
    monkeypatch.setattr(live, "LONGEST_WAIT_S", 0.2)
    before = fetch(live_server)
    assert fetch(live_server, changes_of(before)) == "data: same\n\n"
    with (live_server.run_folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 21, "reward/mean": 0.123}) + "\n")
    assert fetch(live_server, changes_of(before)) == "data: changed\n\n"
    after = fetch(live_server)
    assert "0.123" not in before
    assert "0.123" in after
    # Another tab still shows the earlier state.
    assert fetch(live_server, changes_of(before)) == "data: changed\n\n"
    assert fetch(live_server, changes_of(after)) == "data: same\n\n"


@pytest.mark.parametrize(("host", "status"), [("evil.example:80", 403), ("", 404)])
def test_other_hosts_and_paths_are_refused(live_server, host, status):
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(live_server, "" if host else "run.json", host)
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


def test_more_than_may_wait_for_changes_are_answered_at_once(live_server, monkeypatch):
    monkeypatch.setattr(live, "MOST_WATCHING", 2)
    monkeypatch.setattr(live, "LONGEST_WAIT_S", 30.0)
    path = changes_of(fetch(live_server))
    before = threading.active_count()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(fetch, live_server, path) for _ in range(2)]
        wait_for(lambda: live_server.gauges()["page_watchers"] == 2)
        for _ in range(3):
            start = time.monotonic()
            assert fetch(live_server, path) == "data: same\n\n"
            assert time.monotonic() - start < 5
        assert threading.active_count() - before <= 4  # no thread for who waits
        (live_server.run_folder / "summary.json").write_text("{}")
        assert [done.result() for done in waiting] == ["data: changed\n\n"] * 2
    wait_for(lambda: live_server.gauges()["page_watchers"] == 0)
