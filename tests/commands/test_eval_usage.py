"""`flowzoo eval` counts tokens, dollars and seconds of every role, and stops at a budget."""

import json

import pytest
from endpoint import chat, serving

from flowzoo.cli import main

PRICES = """"writer" = { input = 1, output = 10 }
"chooser" = { input = 2, output = 20 }
"""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving() as endpoint:
        endpoint.answer = lambda body, count: chat("\\boxed{1}")  # 7 prompt tokens, 3 of the reply
        yield endpoint


@pytest.fixture
def line(server, tmp_path):
    (tmp_path / "prices.toml").write_text(PRICES)
    roles = [f"generator=openai:writer@{server.url}", f"aggregator=openai:chooser@{server.url}"]
    return ["eval", "voting", "--n", "10", "--prices", str(tmp_path / "prices.toml"), "--out",
            str(tmp_path / "out"), "--policy", *roles]  # fmt: skip


def usage(tmp_path):
    return json.loads((tmp_path / "out" / "summary.json").read_text())["usage"]


def test_every_role_has_its_tokens_cost_and_latency(line, tmp_path, capsys):
    assert main(line) == 0
    displayed = capsys.readouterr().out
    assert "cost $0.0019: aggregator $0.0007, generator $0.0011\n" in displayed
    assert "seconds per call, median and 95th percentile: aggregator 0." in displayed
    whole = usage(tmp_path)
    generator, aggregator = whole["roles"]["generator"], whole["roles"]["aggregator"]
    assert (generator["calls"], aggregator["calls"]) == (30, 10)
    assert (generator["prompt_tokens"], generator["output_tokens"]) == (210, 90)
    assert generator["cost"] == (210 * 1 + 90 * 10) / 1e6
    assert aggregator["cost"] == (70 * 2 + 30 * 20) / 1e6
    assert whole["cost"] == pytest.approx(generator["cost"] + aggregator["cost"])
    assert 0 < generator["latency"]["median"] <= generator["latency"]["p95"]
    assert "seconds per episode, its slowest call of every phase, median and 95th" in displayed
    assert whole["critical_path"]["median"] > aggregator["latency"]["median"]


def test_latencies_outlive_an_interruption_and_are_no_part_of_episodes(line, tmp_path):
    assert main(line) == 0
    whole = usage(tmp_path)
    out = tmp_path / "out"
    episodes = (out / "episodes.jsonl").read_text()
    assert "seconds" not in episodes
    (out / "episodes.jsonl").write_text("".join(episodes.splitlines(keepends=True)[:6]))
    rows = (out / "latencies.jsonl").read_text().splitlines(keepends=True)
    (out / "latencies.jsonl").write_text("".join(rows[:6]) + rows[6][:9])
    assert main(line) == 0
    timed = dict.fromkeys(("latency", "critical_path", "roles"), 0)
    assert usage(tmp_path) | timed == whole | timed
    again = [json.loads(row) for row in (out / "latencies.jsonl").open()]
    assert [json.loads(row) for row in rows[:6]] == again[:6]
    assert len(again) == 10


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (["--max-tokens-total", "150"], "tokens of --max-tokens-total 150: raise it to play on"),
        (["--max-cost", "0.001"], "of --max-cost 0.001: raise it to play on"),
    ],
)
def test_a_budget_stops_an_evaluation_and_more_of_it_plays_the_rest(
    line, limit, message, server, tmp_path, capsys
):
    assert main([*line, *limit]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert message in error
    assert "of 10 episodes are saved in" in error
    assert "the same command resumes" in error
    asked = len(server.seen)
    assert asked < 40
    assert main([*line, limit[0], "1000"]) == 0
    whole = usage(tmp_path)
    assert (whole["calls"], whole["prompt_tokens"], whole["output_tokens"]) == (40, 280, 120)


def test_what_cannot_be_counted_has_no_cost_and_keeps_no_budget(line, server, tmp_path, capsys):
    def uncounted(body, count):
        status, headers, reply = chat("\\boxed{1}")
        return status, headers, reply | ({"usage": None} if body["model"] == "chooser" else {})

    server.answer = uncounted
    assert main(line) == 0
    assert "cost n/a: aggregator n/a, generator $0.0011\n" in capsys.readouterr().out
    assert usage(tmp_path)["roles"]["aggregator"]["prompt_tokens"] is None
    assert main([*line, "--max-cost", "1"]) == 2
    assert "does not count tokens, so the evaluation cannot keep a" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ('"writer" = { input = 1, output = 10 }', "unknown model in the price file 'chooser'"),
        ("writer = 3", "`writer` in"),
        ("writer = { input = -1, output = 1 }", "must be the dollars per million tokens"),
        ("writer = { input = 1 }", "must be the dollars per million tokens"),
        ("writer", "is not TOML"),
    ],
)
def test_wrong_prices_are_explained(line, prices, message, tmp_path, capsys):
    (tmp_path / "prices.toml").write_text(prices)
    assert main(line) == 2
    assert message in " ".join(capsys.readouterr().err.split())
