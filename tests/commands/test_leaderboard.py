"""`flowzoo leaderboard`: cells of a file, each an evaluation, and the tables of what they found."""

import json
import shlex

import pytest
from endpoint import chat, serving

from flowzoo.agents.evaluation.comparison import as_markdown
from flowzoo.cli import main

FILE = """
[settings]
n = 20
[[cells]]
workflow = ["single", "voting"]
policy = ["scripted:0.4", "scripted:0.9"]
[[cells]]
workflow = ["voting"]
policy = [["generator=scripted:0.4", "aggregator=scripted:0.9"]]
settings = { samples = 2, majority = true, options = ["n_votes=2"] }
label = "two|votes"
"""


@pytest.fixture
def board(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo.toml").write_text(FILE)
    return tmp_path / "runs" / "zoo"


def test_every_cell_is_an_evaluation_and_the_best_comes_first(board, capsys):
    assert main(["leaderboard", "zoo.toml"]) == 0
    displayed = capsys.readouterr().out
    assert displayed == (board / "leaderboard.md").read_text()
    tables = json.loads((board / "leaderboard.json").read_text())["tables"]
    assert as_markdown(tables) == displayed
    tables[0]["rows"][0]["policy"] = "a|b <img src=x onerror=alert(1)> `c` [d](javascript:e)\nf"
    tables[0]["task"] = "<script>"
    text = as_markdown(tables)
    assert not {*"<>`[]"} & {*text}
    assert [line.count("|") for line in text.splitlines()] == [
        line.count("|") for line in displayed.splitlines()
    ]
    (table,) = json.loads((board / "leaderboard.json").read_text())["tables"]
    rows = table["rows"]
    names = ["single-scripted-0.4", "single-scripted-0.9", "voting-scripted-0.4",
             "voting-scripted-0.9",
             "voting-generator=scripted-0.4-aggregator=scripted-0.9-two-votes"]  # fmt: skip
    assert sorted(row["name"] for row in rows) == sorted(names)
    assert [row["accuracy"] for row in rows] == sorted(
        (row["accuracy"] for row in rows), reverse=True
    )
    best = rows[0]
    assert best["behind"] is None
    for row in rows:
        summary = json.loads((board / row["name"] / "summary.json").read_text())
        assert row["accuracy"] == summary.get("majority", summary)["accuracy"]
        if row is not best:
            assert row["behind"]["difference"] == pytest.approx(row["accuracy"] - best["accuracy"])
    lines = [line for line in displayed.splitlines() if line.startswith("| ")]
    assert len(lines) == 7
    assert lines[2].startswith(f"| {best['workflow']} ")
    assert "voting_v0 (2 each) | generator=scripted:0.4 aggregator=scripted:0.9" in displayed


def test_a_cell_can_be_repeated_by_hand_and_a_finished_one_is_not_played(board, capsys):
    assert main(["leaderboard", "zoo.toml", "--dry-run", "--only", "single", "two"]) == 0
    commands = capsys.readouterr().out.splitlines()
    assert len(commands) == 3
    assert not board.exists()
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
    times = {path: path.stat().st_mtime_ns for path in board.glob("*/run.json")}
    capsys.readouterr()
    assert main(["leaderboard", "zoo.toml", "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    assert len(table["rows"]) == 5
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_cell_that_fails_leaves_the_others(board, capsys, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (board.parent.parent / "prices.toml").write_text("m = { input = 1e4, output = 1e4 }")
    with serving() as server:
        server.answer = lambda body, count: chat("\\boxed{1}")
        file = FILE.replace('"scripted:0.4", ', f'"openai:m@{server.url}", ').replace(
            "n = 20", 'n = 20\nprices = "prices.toml"\nmax_cost = 3'
        )
        (board.parent.parent / "zoo.toml").write_text(file)
        assert main(["leaderboard", "zoo.toml"]) == 1
        first = capsys.readouterr()
        message = " ".join(first.err.split())
        assert "failed: voting-openai-m: the evaluation has cost $" in message
        assert list(json.loads((board / "leaderboard.json").read_text())["failures"]) == [
            "voting-openai-m"
        ]
        (board.parent.parent / "zoo.toml").write_text(
            file.replace("max_cost = 3", "max_cost = 100")
        )
        assert main(["leaderboard", "zoo.toml"]) == 0
        count = len(server.seen)
        assert "$2.0000 |" in capsys.readouterr().out
        assert main(["leaderboard", "zoo.toml"]) == 0
        (board.parent.parent / "prices.toml").write_text("m = { input = 1e4, output = 0 }")
        assert main(["leaderboard", "zoo.toml", "--only", "single-openai"]) == 0
        assert "$1.4000 |" in capsys.readouterr().out
        assert len(server.seen) == count


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("n = 20", "nn = 20", "cell single-scripted-0.4: flowzoo eval has no option --nn"),
        ("n = 20", 'out = "x"', "must not have `out`"),
        ("[[cells]]", "[[cell]]", "unknown field in zoo.toml 'cell'"),
        ('["scripted:0.4", "scripted:0.9"]', '"scripted:0.4"', "`policy` of a cell"),
        ('"scripted:0.4", "s', '"scripted:0.9", "s', "has the cell single-scripted-0.9 twice"),
        ('workflow = ["single", "voting"]', "", "needs a list `workflow`"),
        ("label", "lable", "unknown field of a cell in zoo.toml 'lable'. Did you mean 'label'"),
        ("n_votes=2", "n_vote=2", "aggregator=scripted-0.9-two-votes: "),
    ],
)
def test_a_mistake_is_found_before_anything_is_played(board, before, after, message, capsys):
    (board.parent.parent / "zoo.toml").write_text(FILE.replace(before, after))
    assert main(["leaderboard", "zoo.toml"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not board.exists()
