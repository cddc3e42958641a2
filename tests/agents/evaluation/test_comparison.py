"""Two evaluations of the same problems are compared problem by problem."""

import json
import math

import pytest

from flowzoo.agents.evaluation.intervals import paired_interval
from flowzoo.cli import main

VOTING = ["eval", "voting", "--policy", "scripted:0.7", "--n", "40"]
SINGLE = ["eval", "single", "--policy", "scripted:0.4", "--n", "40"]


def scores(both, first, second, none):
    return [1.0] * (both + first) + [0.0] * (second + none), (
        [1.0] * both + [0.0] * first + [1.0] * second + [0.0] * none
    )


def wilson(right, of):
    square = 1.959964**2
    middle = (2 * right + square) / (2 * (of + square))
    half = math.sqrt(square * (square + 4 * right * (1 - right / of))) / (2 * (of + square))
    return middle - half, middle + half


def published(both, first, second, none):
    """Newcombe's method 10 by its formula in the four counts."""
    of = both + first + second + none
    p, q = (both + second) / of, (both + first) / of
    (low_p, high_p), (low_q, high_q) = wilson(both + second, of), wilson(both + first, of)
    product = (both + first) * (second + none) * (both + second) * (first + none)
    cross = both * none - first * second
    cross = max(cross - of / 2, 0) if cross > 0 else cross
    phi = cross / math.sqrt(product) if product else 0
    below = (p - low_p) ** 2 - 2 * phi * (p - low_p) * (high_q - q) + (high_q - q) ** 2
    above = (high_p - p) ** 2 - 2 * phi * (high_p - p) * (q - low_q) + (q - low_q) ** 2
    return p - q - math.sqrt(below), p - q + math.sqrt(above)


@pytest.mark.parametrize(
    "table", [(36, 2, 12, 0), (36, 12, 2, 0), (14, 0, 5, 22), (0, 0, 0, 20), (59, 6, 16, 80)]
)
def test_scores_of_0_and_1_have_newcombes_interval(table):
    assert paired_interval(*scores(*table)) == pytest.approx(published(*table), abs=1e-9)


def test_scores_between_0_and_1_have_the_interval_of_their_differences():
    low, high = paired_interval([0.25, 0.5, 0.5, 0.0], [0.5, 0.5, 0.75, 0.5])
    assert (low + high) / 2 == pytest.approx(0.25)
    assert (high - low) / 2 == pytest.approx(3.182446 * 0.204124 / 2, rel=2e-3)
    assert paired_interval([0.25], [0.5]) is None


def test_an_evaluation_is_paired_with_an_earlier_one(tmp_path, capsys):
    team, control = str(tmp_path / "team"), tmp_path / "control"
    assert main([*VOTING, "--out", team]) == 0
    args = [*SINGLE, "--out", str(control)]
    assert main([*args, "--against", team]) == 0
    line, _, last = capsys.readouterr().out.splitlines()[-3:]
    assert last.startswith("accuracy ")
    before, summary = (json.loads((path / "summary.json").read_text()) for path in
                       (tmp_path / "team", control))  # fmt: skip
    result = summary["against"]
    assert result["difference"] == pytest.approx(summary["accuracy"] - before["accuracy"])
    assert result["won"] - result["lost"] == pytest.approx(40 * result["difference"])
    assert result["won"] + result["lost"] + result["tied"] == result["problems"] == 40
    low, high = result["interval"]
    assert low < result["difference"] < high
    assert line == (
        f"against {team}: {100 * result['difference']:+.1f} points (95 % interval "
        f"{100 * low:+.1f} to {100 * high:+.1f}); {result['won']} problems won, "
        f"{result['lost']} lost, {result['tied']} tied"
    )
    assert main([*VOTING, "--out", team, "--against", team]) == 0
    assert "+0.0 points" in capsys.readouterr().out


def test_votes_are_compared_as_votes(tmp_path, capsys):
    team = str(tmp_path / "team")
    assert main([*VOTING, "--out", team]) == 0
    args = [*SINGLE, "--like", team, "--out", str(tmp_path / "votes"), "--json"]
    assert main([*args, "--against", team]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-4])
    before = json.loads((tmp_path / "team" / "summary.json").read_text())
    gain = summary["majority"]["accuracy"] - before["accuracy"]
    assert summary["against"]["difference"] == pytest.approx(gain)


def test_other_problems_and_other_rules_are_refused(tmp_path, capsys):
    team = str(tmp_path / "team")
    assert main([*VOTING, "--out", team]) == 0
    for words, message in (
        (["--seed", "1"], "is of other problems (problem_set"),
        (["--preset", "paper"], "reads replies by the strict rules and this one by the lenient"),
        (["--against", str(tmp_path)], "no finished evaluation at"),
    ):
        assert main([*SINGLE, "--against", team, *words]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
