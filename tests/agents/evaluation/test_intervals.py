"""Intervals of rates, known values and coverage, and of paired evaluations."""

import json
import math

import numpy as np
import pytest
from scipy.special import stdtrit

from flowzoo.agents import PolicyMap
from flowzoo.agents.evaluation.evaluate import evaluate
from flowzoo.agents.evaluation.intervals import (
    grouped_share,
    interval,
    mean_interval,
    number_interval,
    paired_interval,
    share_interval,
    t_limit,
)
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.cli import main
from flowzoo.envs import make_workflow


def test_one_case_a_group_is_wilsons_interval():
    hits = [1.0] * 36 + [0.0] * 24
    assert interval(np.array(hits)) == pytest.approx((0.47366, 0.71431), abs=1e-5)
    assert grouped_share(hits, [1] * 60) == pytest.approx(share_interval(0.6, 60))
    assert t_limit(59) > 1.959964  # Student's t where the variance is estimated


def test_the_quantiles_of_t_are_those_of_scipy():
    freedoms = [1, 2, 3, 4, 5, 8, 15, 29, 99, 499, 10_000]
    assert [t_limit(freedom) for freedom in freedoms] == pytest.approx(
        stdtrit(freedoms, 0.975).tolist(), rel=1.3e-3
    )
    assert t_limit(1) == pytest.approx(12.7062, rel=1e-5)
    assert t_limit(2) == pytest.approx(4.30265, rel=1e-5)
    assert t_limit(10**9) == pytest.approx(1.959964, rel=1e-8)


def test_the_mean_of_shares_has_no_interval_beyond_shares():
    high, low = np.array([1.0] * 29 + [0.75]), np.array([0.0] * 29 + [0.25])
    assert 0.9 < interval(high)[0] < 0.99167 < interval(high)[1] < 1.0
    assert interval(low) == pytest.approx((1 - interval(high)[1], 1 - interval(high)[0]))
    assert interval(2 * high)[1] > 2  # returns of an environment have no bounds
    assert interval(np.array([0.5])) == interval(np.array([0.7] * 5)) == (-np.inf, np.inf)
    assert paired_interval([0.25, 0.0], [1.0, 1.0]) == pytest.approx((-0.7132, 1.0), abs=1e-4)


def test_pay_that_never_differs_has_no_interval():
    assert number_interval(np.ones(50)) == number_interval(np.zeros(1)) == (-np.inf, np.inf)
    low, high = number_interval(np.array([0.0, 1.0] * 2))  # pay of 0 or 1 is no share
    assert (low, high) == pytest.approx((0.5 - 0.9187, 0.5 + 0.9187), abs=2e-3)
    assert paired_interval([0.25, 0.5], [0.75, 1.0]) is None


def test_cases_that_repeat_each_other_count_once():
    alike = grouped_share([3.0] * 12 + [0.0] * 8, [3] * 20)
    assert alike == pytest.approx(share_interval(0.6, 19, t_limit(19)))
    assert grouped_share([3.0] * 20, [3] * 20) == pytest.approx(share_interval(1.0, 20))
    assert grouped_share([2.0] * 20, [3] * 20).of == 20  # groups that all have the same share


@pytest.mark.parametrize("samples", [1, 4])
def test_fractional_scores_have_intervals_of_their_own_spread(samples):
    scores = np.random.default_rng(0).uniform(0.4, 0.6, (100, samples))
    low, high = mean_interval(scores.tolist())
    half = 1.984 * scores.mean(axis=1).std(ddof=1) / 10
    assert (high - low) / 2 == pytest.approx(half, rel=0.2)


def test_numbers_in_groups_of_different_sizes_are_around_their_mean():
    groups = [[1.0, 3.0, 5.0], [2.0], [9.0, 7.0]]
    low, high = mean_interval(groups)
    assert (low + high) / 2 == pytest.approx(27 / 6)
    # Sums of the distances from 4.5 are -4.5, -2.5 and 7.
    error = np.sqrt(3 / 2 * (4.5**2 + 2.5**2 + 7**2)) / 6
    assert (high - low) / 2 == pytest.approx(4.30265 * error)


def test_every_rate_of_an_evaluation_has_its_interval():
    workflow = make_workflow("eval_opt_v0", "math")
    problems = distinct_problems(workflow.task, "validation", 20)
    policy_map = PolicyMap.shared(ScriptedPolicy(workflow, 0.6), workflow.role_counts())
    _, summary = evaluate(workflow, policy_map, problems, samples=2)
    ends = summary["intervals"]
    rates = {name: summary[name] for name in ("accuracy", "avg@2", "pass@1", "pass@2")}
    inside = [(ends[name], rate) for name, rate in rates.items()]
    for role, row in summary["roles"].items():
        for name in ("role_score", "strict", "lenient", "truncated"):
            inside.append((ends["roles"][role][name], row[name]))
    for name, item in summary["shares"].items():
        inside.append((ends["shares"][name], item["share"]))
    assert len(inside) >= 15
    for (low, high), rate in inside:
        assert 0 <= low <= rate <= high <= 1
        assert low < high
    _, alone = evaluate(workflow, policy_map, problems[:1], samples=3)
    score = alone["accuracy"]
    assert ("accuracy" in alone["intervals"]) == (score in (0.0, 1.0))  # else one value, no spread


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


def test_the_variance_is_that_of_the_published_double_sum():
    rng = np.random.default_rng(0)
    groups = [(rng.random(size) < chance).astype(float) for size, chance in
              zip(rng.integers(1, 9, 40), rng.random(40), strict=True)]  # fmt: skip
    values = np.concatenate(groups)
    count, middle = len(values), values.mean()
    # arXiv 2411.00640: the variance of independent values, and a covariance for all pairs.
    total = ((values - middle) ** 2).sum()
    for group in groups:
        total += sum(
            (first - middle) * (second - middle)
            for i, first in enumerate(group) for j, second in enumerate(group) if i != j
        )  # fmt: skip
    cases = middle * (1 - middle) / (total / count**2 * 40 / 39)
    low, high = mean_interval([group.tolist() for group in groups])
    limit = 2.0227
    assert (low + high) / 2 == pytest.approx(
        (middle + limit**2 / (2 * cases)) / (1 + limit**2 / cases), abs=1e-4
    )
