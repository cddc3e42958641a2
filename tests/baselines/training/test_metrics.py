"""The rows of metrics: what a role's calls and groups come to, and spikes of the gradient."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowzoo.agents.evaluation.intervals import interval, share_interval, t_limit
from flowzoo.agents.evaluation.summary import role_summary
from flowzoo.baselines.advantages.compute import compute
from flowzoo.baselines.advantages.spec import PRESETS
from flowzoo.baselines.stats import paired_gain
from flowzoo.baselines.training.metrics import (
    advantage_metrics,
    attempt_gains,
    evaluation_metrics,
    role_metrics,
    spike,
)
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.envs.records import Usage
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call


def make_call(role: str, reward: float = 0.0, tokens: int = 1, **changes: Any) -> Call:
    fields = {"parts": {"team": reward}, "reward": reward, "output_ids": (0,) * tokens}
    return new_call(role, **fields | changes)


def make_record(number: int, calls: list[Call], **changes: Any) -> EpisodeRecord:
    fields: dict[str, Any] = {
        "workflow": "w", "task": "t", "problem": "p", "episode": f"e{number}", "text": "",
        "gold": "", "score": 1.0, "answer": None, "truncated": False, "facts": {}, "returns": {},
        "calls": tuple(calls),
    }  # fmt: skip
    return EpisodeRecord(**{**fields, **changes})


def test_tokens_times_calls_is_the_number_of_sampled_tokens():
    lengths = [[3, 8, 1], [7], [2, 2]]
    records = [
        make_record(i, [make_call("a", tokens=n) for n in part] + [make_call("b", tokens=5)])
        for i, part in enumerate(lengths)
    ]
    row = role_metrics(records)
    assert (row["calls/a"], row["calls/b"], row["calls/mean"]) == (6.0, 3.0, 3.0)
    assert row["tokens/a"] * row["calls/a"] == pytest.approx(23, abs=1e-9)
    assert row["tokens/b"] * row["calls/b"] == 15
    assert role_metrics(records, "eval/")["eval/calls/a"] == 6.0


def test_a_critical_path_has_the_longest_reply_of_every_phase():
    phases = [[[3, 8, 1], [5]], [[7], [2, 4], [6]]]
    records = [
        make_record(
            number,
            [
                make_call("a", tokens=tokens, phase=phase)
                for phase, lengths in enumerate(episode)
                for tokens in lengths
            ],
        )
        for number, episode in enumerate(phases)
    ]
    by_hand = ((8 + 5) + (7 + 4 + 6)) / 2
    assert role_metrics(records)["tokens/path"] == by_hand
    records.append(make_record(2, [make_call("a", tokens=9), make_call("a", tokens=0)]))
    assert role_metrics(records)["tokens/path"] == by_hand  # not every reply was counted
    assert "tokens/path" not in role_metrics(records[2:])


def test_the_deviation_of_rewards_and_the_length_that_most_replies_keep():
    calls = [make_call("a", reward=float(n % 2), tokens=n + 1) for n in range(101)]
    found = role_summary(calls)
    assert found["tokens"] == 51
    assert found["tokens_p95"] == pytest.approx(96)
    share = 50 / 101
    assert found["reward_std"] == pytest.approx(math.sqrt(share * (1 - share)))
    one = role_summary([make_call("a", reward=0.3, tokens=4)])
    assert (one["reward_std"], one["tokens_p95"]) == (0.0, 4.0)


def test_tokens_that_nobody_counted_are_no_metric():
    calls = [make_call("a", tokens=0), make_call("b", tokens=3)]
    calls.append(make_call("b", tokens=0, usage=Usage(9, 7)))
    row = role_metrics([make_record(0, calls)])
    assert [name for name in row if "tokens" in name and name.endswith("/a")] == []
    assert (row["tokens/b"], row["tokens/mean"]) == (5.0, 10.0)
    assert "tokens/mean" not in role_metrics([make_record(0, calls[:1])])


def test_a_role_without_a_role_score_reports_none():
    row = role_metrics([make_record(0, [make_call("a"), make_call("b", role_score=1.0)])])
    assert "role_score/a" not in row
    assert row["role_score/b"] == 1.0


def test_shares_come_with_the_number_of_their_cases():
    facts = [{"contested": True, "recovered": True}, {"contested": True, "recovered": False}]
    facts += [{"contested": False, "recovered": False}] * 2
    row = role_metrics([make_record(i, [], facts=one) for i, one in enumerate(facts)])
    assert (row["share/contested"], row["share_of/contested"]) == (0.5, 4)
    assert (row["share/aggregator_recovery"], row["share_of/aggregator_recovery"]) == (0.5, 2)
    assert "share/evaluator_tpr" not in row


def attempts(scores: dict[str, tuple[float, ...]]) -> list[EpisodeRecord]:
    return [
        make_record(i, [], problem=problem, score=score)
        for problem, own in scores.items()
        for i, score in enumerate(own)
    ]


def test_several_episodes_of_a_problem_give_avg_and_pass_at_k():
    records = attempts({"p": (1.0, 0.0, 0.0, 0.0), "q": (0.0, 0.0, 0.0, 0.0)})
    row = role_metrics(records)
    assert (row["avg@4"], row["pass@1"], row["pass@2"], row["pass@4"]) == (0.125, 0.125, 0.25, 0.5)
    assert not any("@" in name for name in role_metrics(records[::4]))


def test_problems_are_counted_by_their_episodes_all_wrong_all_right_or_mixed():
    outcomes = [(0.0, 0.5), (1.0, 1.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.25,) * 2]
    row = role_metrics(attempts({f"p{i}": scores for i, scores in enumerate(outcomes)}))
    # By hand: 0, 3, 5 and 6 have no right episode, 1 has no other, 2 and 4 have both.
    assert row["group/solve_none"] == 4 / 7
    assert row["group/solve_all"] == 1 / 7
    assert row["group/solve_partial"] == 2 / 7
    held = evaluation_metrics(attempts({"p": (1.0, 1.0), "q": (1.0, 0.0)}))
    shares = [held[f"eval/group/solve_{part}"] for part in ("none", "all", "partial")]
    assert shares == [0, 0.5, 0.5]
    assert not any("solve" in name for name in role_metrics(attempts({"p": (1.0,), "q": (0.0,)})))


def test_an_evaluation_of_one_episode_each_has_its_scores_and_nothing_of_several():
    records = attempts({"p": (1.0,), "q": (0.25,), "r": (0.0,)})
    row = evaluation_metrics(records)
    assert row == role_metrics(records, "eval/") | {"eval/scores": [1.0, 0.25, 0.0]}
    assert attempt_gains(row, row, 1) == {}


def test_an_evaluation_of_several_episodes_has_intervals_over_problems():
    right = {f"p{i}": (1.0,) * (i % 5) + (0.0,) * (4 - i % 5) for i in range(50)}
    row = evaluation_metrics(attempts(right))
    counts = [i % 5 for i in range(50)]
    assert row["eval/right"] == counts
    assert row["eval/scores"] == [count / 4 for count in counts]
    assert row["eval/reward/mean"] == row["eval/avg@4"] == 0.5
    # Clusters: as many independent cases as have the variance of the problems' means.
    cases = 0.25 / (float(np.var(row["eval/scores"], ddof=1)) / 50)
    half = share_interval(0.5, cases, t_limit(49)).high - 0.5
    assert row["eval/avg@4_high"] - 0.5 == pytest.approx(half)
    assert 0.5 - row["eval/avg@4_low"] == pytest.approx(half)
    # pass@2 of a problem with c of 4 right: 1 - C(4 - c, 2) / C(4, 2), arXiv 2107.03374.
    chances = [1 - math.comb(4 - count, 2) / 6 for count in counts]
    assert row["eval/pass@2"] == pytest.approx(float(np.mean(chances)))
    assert row["eval/pass@4"] == pytest.approx(0.8)
    assert (row["eval/pass@4_low"], row["eval/pass@4_high"]) == interval(
        np.array([float(count > 0) for count in counts])
    )


def test_the_gains_of_several_episodes_are_paired_by_problem():
    before = evaluation_metrics(attempts({f"p{i}": (0.0, 0.0) for i in range(20)}))
    after = evaluation_metrics(attempts({f"p{i}": (float(i < 10), 0.0) for i in range(20)}))
    gains = attempt_gains(before, after, 2)
    assert list(gains) == ["avg@2", "pass@1", "pass@2"]
    assert gains["avg@2"]["gain"]["mean"] == gains["pass@1"]["gain"]["mean"] == 0.25
    assert gains["pass@2"]["gain"] == paired_gain([0.0] * 20, [1.0] * 10 + [0.0] * 10)._asdict()
    assert gains["pass@2"]["after"][0] == 0.5
    assert gains["pass@2"]["before"] == [0.0, 0.0, interval(np.zeros(20))[1]]


def test_one_problem_has_no_interval():
    row = evaluation_metrics(attempts({"p": (1.0, 0.0)}))
    assert row["eval/avg@2"] == 0.5
    assert "eval/avg@2_low" not in row
    assert attempt_gains(row, row, 2)["avg@2"]["before"] == [0.5, None, None]


def test_roles_report_the_fraction_of_their_rows_that_learn_nothing():
    # Role a: one group of four with two rewards, one constant of two. Role b: one constant group
    # of three and one of a single call.
    calls = [make_call("a", reward) for reward in (0.0, 1.0, 1.0, 1.0)]
    calls += [make_call("a", 1.0, problem="q") for _ in range(2)]
    calls += [make_call("b", 1.0) for _ in range(3)] + [make_call("b", 1.0, problem="q")]
    spec = PRESETS["dr_mas"]
    row = advantage_metrics(compute(calls, spec), calls)
    assert (row["group/count"], row["group/zero_variance"], row["group/singleton"]) == (4, 2, 1)
    assert row["group/zero_variance/a"] == pytest.approx(2 / 6)
    assert row["group/singleton/a"] == 0.0
    assert row["group/zero_variance/b"] == pytest.approx(3 / 4)
    assert row["group/singleton/b"] == pytest.approx(1 / 4)
    mixed = [calls[i] for i in (9, 0, 6, 4, 1, 7, 2, 5, 3, 8)]
    assert advantage_metrics(compute(mixed, spec), mixed) == pytest.approx(row)


def test_rows_of_another_batch_are_refused():
    calls = [make_call("a", 1.0), make_call("a", episode="f")]
    with pytest.raises(UsageError, match="got 1 calls and 2 advantages"):
        advantage_metrics(compute(calls, "grpo"), calls[:1])


STEADY = [1.0, 2.0, 3.0, 2.0, 2.0]
LEARNED = [1.0, 1.1, 0.9, 0.8] * 5 + [0.5, 0.1] + [0.0, 0.01] * 15
"""Norms of 1 while a policy learns, next to 0 once it has solved its problems."""


@pytest.mark.parametrize(
    ("norm", "earlier", "options", "found"),
    [
        (10.01, STEADY, {}, True),
        (10.0, STEADY, {}, False),  # five medians
        (6.1, STEADY, {"factor": 3.0}, True),
        (1e9, [], {}, False),
        (1e9, [1.0] * 4, {}, False),
        (1e9, [1.0] * 4 + [math.nan, math.inf], {}, False),  # five finite ones are needed
        (1e9, [1.0, math.nan] * 5, {}, True),
        (60.0, [100.0] * 60 + [10.0] * 50, {}, True),  # the median runs
        (60.0, [100.0] * 60 + [10.0] * 50, {"window": 110}, False),
        (0.6, LEARNED, {}, False),  # where a problem was missed
        (6.0, LEARNED, {}, True),
        (6.0, [*LEARNED, 50.0], {}, True),  # one spike does not hide the next
        # The searcher of docs/failure-modes.md, C: samples that are alike cancel.
        (0.1675, [0.0171, 0.0004, 0.0002, 0.00003, 0.1836], {}, False),
        (1.0, [0.0] * 10, {}, False),
    ],
)
def test_a_spike_is_far_above_the_norms_before_it(norm, earlier, options, found):
    assert spike(norm, earlier, **options) == found


def test_norms_that_range_over_a_decade_spike_seldom_and_steady_ones_when_they_do():
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(100):
        norms = np.exp(rng.choice([0.3, 0.6, 1.0]) * rng.standard_normal(100)).tolist()
        false += any(spike(norm, norms[:place]) for place, norm in enumerate(norms))
    assert false <= 8  # 5 % of 100 at most; above five medians alone 45 have one
    steady = np.exp(0.3 * rng.standard_normal(40)).tolist()
    assert spike(12.0, steady)


@given(st.lists(st.floats(1.0, 10.0), min_size=50, max_size=60), st.floats(0.1, 100.0))
def test_spikes_do_not_depend_on_the_scale_nor_on_like_norms_before_the_window(earlier, norm):
    found = spike(norm, earlier)
    assert spike(norm * 4, [value * 4 for value in earlier]) == found
    assert spike(norm, [19.0] * 7 + earlier) == found
