"""Form signatures and the capture verdict on planted roles."""

import math

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.amplification import (
    FEWEST,
    amplification,
    fieller,
    products_left_out,
)
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
from studies.truth.simulation import simulate_gram
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


SIZE, SLOTS, BLOCKS = 200, 3, 8


def probe(means: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """Gram array of one probe whose slot gradients have the norm of `means` and that of noise."""
    return simulate_gram(means, noise, BLOCKS, rng, SIZE)


def aligned() -> np.ndarray:
    """One direction for all slots."""
    return np.repeat(np.eye(1, SIZE), SLOTS, axis=0)


def test_aligned_slots_amplify_n_times():
    """N = 3."""
    rng = np.random.default_rng(0)
    found = amplification([probe(aligned(), 0.05, rng) for _ in range(3)])
    assert found.value == pytest.approx(3, abs=0.02)
    assert found.low <= 3 <= found.high < 3.1
    assert found.effective == pytest.approx(3, abs=0.01)


def test_orthogonal_slots_amplify_root_n_times():
    """sqrt(3), outside what exchangeable agents would show."""
    rng = np.random.default_rng(1)
    found = amplification([probe(np.eye(SLOTS, SIZE), 0.05, rng) for _ in range(3)])
    assert found.value == pytest.approx(math.sqrt(3), abs=0.05)
    assert found.low <= math.sqrt(3) <= found.high < 2
    assert found.naive < found.null_low


@pytest.mark.parametrize(("snr", "naive"), [(10, 2.99), (1, 2.45), (0.3, 1.87), (0.1, 1.75)])
def test_exchangeable_slots_amplify_n_times_at_any_noise(snr, naive):
    """The naive value sinks with the signal; the corrected interval covers 3."""
    rng = np.random.default_rng(2)
    found = [amplification([probe(aligned(), 1 / snr, rng)], shuffles=0) for _ in range(60)]
    covered = sum(one.low <= SLOTS <= one.high for one in found)
    assert covered >= 53
    assert np.mean([one.naive for one in found]) == pytest.approx(naive, abs=0.04)


def test_partly_aligned_slots_are_covered_alone_and_pooled():
    """Cosines of 0.5 between three slots: sqrt(6), in at least 93 % of the intervals."""
    means = np.linalg.cholesky(0.5 + 0.5 * np.eye(SLOTS))
    rng = np.random.default_rng(6)
    for probes in (1, 10):
        found = [
            amplification([probe(means, 0.1, rng) for _ in range(probes)], shuffles=0)
            for _ in range(100)
        ]
        assert sum(one.low <= math.sqrt(6) <= one.high for one in found) >= 93
        assert np.mean([one.value for one in found]) == pytest.approx(math.sqrt(6), abs=0.02)


@pytest.mark.parametrize(
    ("lengths", "cosine", "truth"),
    [((16, 4, 1), 1.0, 3.0), ((16, 4, 1), 0.0, 3 * math.sqrt(273) / 21), ((1, 1, 0), 1.0, 3.0)],
)
@pytest.mark.parametrize("probes", [1, 10])
def test_lengths_of_slots_do_not_count_as_disagreement(lengths, cosine, truth, probes):
    """N = 3 where all point one way; sqrt(273) / 21 of it for 16 : 4 : 1 at right angles."""
    apart = np.array(lengths) / math.sqrt(np.mean(np.square(lengths)))
    means = apart[:, None] * (aligned() if cosine else np.eye(SLOTS, SIZE))
    rng = np.random.default_rng(8)
    found = [
        amplification([probe(means, 0.3, rng) for _ in range(probes)], shuffles=0)
        for _ in range(100)
    ]
    assert sum(one.low <= truth <= one.high for one in found) >= 90
    assert np.median([one.value for one in found]) == pytest.approx(truth, abs=0.1)


@pytest.mark.parametrize("lengths", [(1, 1, 1), (16, 4, 1)])
def test_more_than_orthogonal_is_told_at_any_lengths(lengths):
    """`over` is 1 at right angles; of aligned slots sum / root of squares; below 1 if opposed."""
    apart = np.array(lengths) / math.sqrt(np.mean(np.square(lengths)))
    rng = np.random.default_rng(9)
    across, along = (
        amplification([probe(apart[:, None] * way, 0.05, rng)], shuffles=0)
        for way in (np.eye(SLOTS, SIZE), aligned())
    )
    assert across.over_low <= 1 <= across.over_high < 1.2
    assert along.over == pytest.approx(apart.sum() / math.sqrt(SLOTS), rel=0.02)
    assert along.over_low > 1.05
    opposed = aligned() * np.array([1, -0.9, 0.1])[:, None]
    against = amplification([probe(opposed, 0.02, rng)], shuffles=0)
    assert against.over_high < 1
    assert against.value == pytest.approx(0.3, abs=0.1)


def test_runs_may_differ_in_the_slot_that_counts_most():
    rng = np.random.default_rng(10)
    found = []
    for _ in range(60):
        grams, runs = [], []
        for run in range(3):
            apart = np.roll([1.0, 0.25, 0.02], run)[:, None]
            grams += [probe(apart * aligned(), 0.1, rng) for _ in range(2)]
            runs += [run] * 2
        found.append(amplification(grams, runs=runs, shuffles=0))
    assert sum(one.low <= SLOTS <= one.high for one in found) >= 54
    assert np.median([one.effective for one in found]) == pytest.approx(1.5, abs=0.1)
    assert amplification(grams, shuffles=0).high < SLOTS


def test_a_negative_denominator_bounds_nothing():
    assert fieller(-0.5, -1.0, np.eye(2) * 1e-4, 2.0) == (0.0, math.inf)
    assert fieller(0.5, -1.0, np.eye(2) * 1e-4, 2.0) == (0.0, math.inf)
    assert fieller(4.0, 1.0, np.zeros((2, 2)), 2.0) == (4.0, 4.0)


def test_without_noise_and_with_an_idle_slot_the_value_is_exact():
    means = aligned() * np.array([1, 0.5, 0])[:, None]
    found = amplification([probe(means, 0.0, np.random.default_rng(0))], shuffles=0)
    assert (found.value, found.low, found.high) == pytest.approx((3, 3, 3), abs=1e-3)


def test_more_confidence_is_a_wider_interval():
    """99 % holds 95 % within it."""
    gram = probe(aligned(), 0.5, np.random.default_rng(7))
    usual, wide = (amplification([gram], confidence=level, shuffles=0) for level in (0.95, 0.99))
    assert wide.low < usual.low < usual.high < wide.high


def test_no_signal_gives_no_bound():
    rng = np.random.default_rng(3)
    found = amplification([probe(np.zeros((SLOTS, SIZE)), 1.0, rng)])
    assert found.high == math.inf


def test_probes_of_other_scales_count_alike():
    rng = np.random.default_rng(4)
    two = [probe(aligned(), 0.05, rng), probe(np.eye(SLOTS, SIZE), 0.05, rng)]
    scaled = [two[0] * 1e6, two[1]]
    assert amplification(two).value == pytest.approx(amplification(scaled).value)


def test_cross_products_are_unbiased():
    rng = np.random.default_rng(5)
    means = np.stack([np.eye(1, SIZE)[0], 0.5 * np.eye(1, SIZE)[0]])
    found = np.mean([products_left_out(probe(means, 1.0, rng))[0] for _ in range(300)], axis=0)
    assert found == pytest.approx(np.array([[1, 0.5], [0.5, 0.25]]), abs=0.04)


@pytest.mark.parametrize("shape", [(1, 8, 1, 8), (2, FEWEST - 1, 2, FEWEST - 1), (2, 8, 3, 8)])
def test_mistakes_are_named(shape):
    with pytest.raises(UsageError, match="a probe must be"):
        amplification([np.ones(shape)])
    with pytest.raises(UsageError, match="at least one"):
        amplification([])
