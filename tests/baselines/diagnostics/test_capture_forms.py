"""Form signatures and the capture verdict on planted roles."""

import math

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.capture import dominance, find_captures, movement
from flowzoo.baselines.diagnostics.forms import (
    FEATURES,
    feature_rows,
    features,
    form_metrics,
    jaccard_similarity,
    surface,
)
from flowzoo.envs.records import Call
from flowzoo.errors import UsageError
from tests.baselines.rows import new_call


def call(reply: str, role: str = "generator", slot: int = 0, episode: str = "e") -> Call:
    """A call that says `reply`."""
    return new_call(episode=episode, role=role, slot=slot, reply=reply)


def test_features_of_typical_replies():
    assert dict(zip(FEATURES, features("so \\boxed{7}"), strict=True)) == {
        "boxed": 1.0, "fence": 0.0, "verdict": 0.0, "terse": 1.0, "length": math.log1p(2),
    }  # fmt: skip
    code = dict(zip(FEATURES, features("```python\nx\n```"), strict=True))
    assert code["fence"] == 1.0
    assert code["boxed"] == code["terse"] == 0.0
    verdict = features("\\boxed{\\text{Incorrect}}")
    assert verdict[2] == 1.0
    assert features("<verify>YES</verify>")[2] == 1.0
    assert features("word " * 40 + "\\boxed{1}")[3] == 0.0
    assert features("inline ``` is no block")[1] == 0.0


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("The second step adds 3 instead of 4, so \\boxed{Incorrect}", "verdict"),
        ("\\boxed{Correct}", "bare_verdict"),
        ("My verdict: \\boxed{Correct}", "bare_verdict"),
        ("```python\nprint(1)\n```", "code"),
        ("looks fine to me", "other"),
    ],
)
def test_surface_classes(reply, kind):
    assert surface(reply) == kind


def test_likeness_is_the_mean_over_pairs():
    """Equal 1, disjoint 0, and the mean between."""
    assert jaccard_similarity(["a b c d", "a b c d"]) == 1.0
    assert jaccard_similarity(["a b c", "x y z"]) == 0.0
    assert jaccard_similarity(["a b c d", "a b c e"]) == pytest.approx(1 / 3)
    assert jaccard_similarity(["a b c", "a b c", "x y z"]) == pytest.approx(1 / 3)
    assert math.isnan(jaccard_similarity(["alone"]))


def test_form_metrics_compare_only_replies_of_one_phase():
    calls = [
        call("a b c", slot=0, episode="1"), call("x y z", slot=1, episode="1"),
        call("a b c", slot=0, episode="2"), call("u v w", slot=1, episode="2"),
        call("\\boxed{Correct}", role="evaluator"),
    ]  # fmt: skip
    row = form_metrics(calls)
    assert row["form/likeness/generator"] == 0.0
    assert "form/likeness/evaluator" not in row
    assert row["form/bare_verdict/evaluator"] == 1.0
    assert "form/bare_verdict/generator" not in row


def test_dominance_needs_a_window_above_both_shares():
    steps = list(range(1, 16))
    rises = [0.5] + [0.8] * 14
    assert dominance(rises, [0.5] * 15, steps) == (True, 1)
    assert dominance([0.5] * 6 + [0.8] * 6 + [0.5] * 3, [0.5] * 15, steps) == (False, None)
    assert dominance([0.9] * 15, [0.5] * 15, steps) == (False, None)
    assert dominance(rises, [0.6] * 15, steps) == (False, None)
    assert dominance(rises[:9], [0.5] * 9, steps[:9]) == (False, None)
    with pytest.raises(UsageError, match="equally long"):
        dominance([0.1], [0.1, 0.2], [1])


@pytest.mark.parametrize("voters", [1, 3, 6, 12, 50])
def test_any_number_of_agents_can_dominate(voters):
    noise, tokens = voters**0.5 / (1 + voters**0.5), voters / (1 + voters)
    steps = list(range(20))
    assert dominance([noise] * 5 + [0.999] * 15, [tokens] * 20, steps)[0]
    assert not dominance([noise] * 5 + [tokens] * 15, [tokens] * 20, steps)[0]


def test_a_noisy_first_share_demands_no_more_than_the_first_few():
    """Of three voters, whose share is 0.63: first 0.84 by chance, later 0.93 throughout."""
    steps, tokens = list(range(20)), [0.75] * 20
    assert dominance([0.84, 0.6, 0.65, 0.6, 0.65] + [0.93] * 15, tokens, steps)[0]


def replies(mean: float, rng: np.random.Generator) -> np.ndarray:
    """Sixty replies of a role in a feature space of five."""
    return rng.normal(mean, 1.0, (60, len(FEATURES)))


def test_planted_capture_is_found_and_only_that():
    rng = np.random.default_rng(0)
    steps = list(range(1, 16))
    mass = {"a": [0.5] + [0.8] * 14, "b": [0.5] + [0.2] * 14}
    tokens = {"a": [0.5] * 15, "b": [0.5] * 15}
    before = {"a": replies(0, rng), "b": replies(4, rng)}
    captured = {"a": replies(0, rng), "b": replies(0.3, rng)}
    found = {(one.by, one.of): one for one in find_captures(mass, tokens, steps, before, captured)}
    assert found["a", "b"].captured
    assert found["a", "b"].from_step == 1
    assert not found["b", "a"].captured
    still = {"a": replies(0, rng), "b": replies(4, rng)}
    assert not any(one.captured for one in find_captures(mass, tokens, steps, before, still))
    even = {"a": [0.5] * 15, "b": [0.5] * 15}
    quiet = find_captures(even, tokens, steps, before, captured)
    assert [one.moved for one in quiet if one.of == "b"] == [True]
    assert not any(one.captured for one in quiet)


def test_a_role_that_always_sounded_like_another_has_no_form_to_lose():
    steps = list(range(1, 16))
    mass, tokens = {"a": [0.5] + [0.8] * 14, "b": [0.5] + [0.2] * 14}, {"a": [0.5] * 15}
    tokens["b"] = tokens["a"]
    captured = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        before, after = ({"a": replies(0, rng), "b": replies(0, rng)} for _ in range(2))
        # The last replies of b are those that a began with: as near as replies can come.
        after["b"] = before["a"]
        pairs = find_captures(mass, tokens, steps, before, after, draws=200)
        captured += any(one.captured for one in pairs)
        assert all(one.apart_p == pairs[0].apart_p for one in pairs)
    assert captured <= 3  # 1 % of such roles seem apart; without that test all 60 are captured


def test_movement_of_noise_is_not_significant():
    rng = np.random.default_rng(1)
    scale = np.ones(len(FEATURES))
    values = [
        movement(replies(2, rng), replies(2, rng), np.zeros(len(FEATURES)), scale, draws=200)[2]
        for _ in range(60)
    ]
    assert sum(value <= 0.05 for value in values) <= 8


def test_feature_rows_of_nothing_are_empty():
    assert feature_rows([]).shape == (0, len(FEATURES))
