"""Advantages against a worked example and hand-made groups; returns to go; shifted rewards."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowzoo.agents.policy import Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout, RolloutBatch, Sampler
from flowzoo.agents.rollout.joint import JointRollout
from flowzoo.agents.rollout.settings import JointSettings, TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.advantages.columns import CallColumns, Groups
from flowzoo.baselines.advantages.compute import RunningMean, compute, episode_returns
from flowzoo.baselines.advantages.spec import PRESETS, AdvantageSpec
from flowzoo.baselines.advantages.targets import own_rewards
from flowzoo.baselines.settings.algorithms import ALGORITHMS, Algorithm
from flowzoo.baselines.training.advantage_computer import AdvantageComputer
from flowzoo.envs import Ask, Call, Outcome, Problem, Script, Workflow, make_workflow
from flowzoo.envs.records import EpisodeRecord
from flowzoo.envs.tasks import make_task
from flowzoo.envs.workflow import FinishedEpisode
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng
from tests.baselines.rows import new_call

ROLES = {"V": "verifier", "S": "searcher", "A": "answerer"}
GOLDEN = [(1.0, "VSVA"), (1.0, "VA"), (1.0, "VSVA"), (0.0, "VSVSVSV"), (0.0, "VSVSVA")]


def make_call(episode: str, role: str, reward: float, **changes: Any) -> Call:
    call = new_call(
        episode=episode, role=role, parts={"team": reward}, reward=reward, name=f"{role}_0"
    )
    return replace(call, **changes)


def golden_calls() -> list[Call]:
    return [
        make_call(f"e{number}", ROLES[letter], score, turn=letters[:idx].count(letter))
        for number, (score, letters) in enumerate(GOLDEN)
        for idx, letter in enumerate(letters)
    ]


def by_role(calls: Sequence[Call], values: Sequence[float]) -> dict[tuple[str, float], float]:
    """(role, reward) -> the one value all such rows have."""
    found: dict[tuple[str, float], set[float]] = {}
    for call, value in zip(calls, values, strict=True):
        found.setdefault((call.role, call.reward), set()).add(round(float(value), 9))
    assert all(len(values) == 1 for values in found.values())
    return {key: values.pop() for key, values in found.items()}


@pytest.mark.parametrize(
    ("preset", "verifier", "searcher", "answerer"),
    [
        ("grpo", (0.7303, -1.0954), (0.7303, -1.0954), (0.7303, -1.0954)),
        ("grpo_call", (1.1151, -0.8578), (1.1151, -0.8578), (1.1151, -0.8578)),
        ("dr_mas", (1.1328, -0.8092), (1.4639, -0.5855), (0.5, -1.5)),
        ("dr_mas_mean", (1.0650, -0.7607), (1.3041, -0.5216), (0.4564, -1.3693)),
        ("dr_mas_std", (0.7768, -1.1652), (0.8198, -1.2296), (0.8, -1.2)),
        ("dr_grpo", (0.4, -0.6), (0.4, -0.6), (0.4, -0.6)),
        ("rloo", (0.5, -0.75), (0.5, -0.75), (0.5, -0.75)),
        ("reinforce_max", (0.0, -1.0), (0.0, -1.0), (0.0, -1.0)),
        ("reinforce", (1.0, 0.0), (1.0, 0.0), (1.0, 0.0)),
        ("paper", (1.1328, -0.8092), (1.4639, -0.5855), (0.5, -1.5)),
        ("reinforce_role", (1.0, 0.0), (1.0, 0.0), (1.0, 0.0)),
        ("reinforce_pp", (0.7303, -1.0954), (0.7303, -1.0954), (0.7303, -1.0954)),
        ("reinforce_pp_base", (0.7303, -1.0954), (0.7303, -1.0954), (0.7303, -1.0954)),
    ],
)
def test_golden_vector(preset, verifier, searcher, answerer):
    calls = golden_calls()
    values = by_role(calls, compute(calls, preset, state=RunningMean()).values.tolist())
    expected = {"verifier": verifier, "searcher": searcher, "answerer": answerer}
    for role, (won, lost) in expected.items():
        assert values[role, 1.0] == pytest.approx(won, abs=1e-4)
        assert values[role, 0.0] == pytest.approx(lost, abs=1e-4)


def test_golden_lemma():
    roles = compute(golden_calls(), "grpo").roles
    rows = {roles.role[code]: row for row, code in enumerate(roles.role_code)}
    expected = {
        "verifier": (12, 0.4167, 0.4930, 1.1528, -0.3742),
        "searcher": (7, 0.2857, 0.4518, 1.2619, -0.6415),
        "answerer": (4, 0.75, 0.4330, 0.8750, 0.3062),
    }
    for role, (calls, mu_k, sigma_k, inflation, shift) in expected.items():
        row = rows[role]
        assert roles.calls[row] == calls
        assert (roles.mu_k[row], roles.sigma_k[row]) == pytest.approx((mu_k, sigma_k), abs=1e-4)
        assert (roles.mu[row], roles.sigma[row]) == pytest.approx((0.6, 0.4899), abs=1e-4)
        assert roles.inflation[row] == pytest.approx(inflation, abs=1e-4)
        assert roles.shift[row] == pytest.approx(shift, abs=1e-4)


def test_every_preset_is_in_the_golden_table():
    marks: list[Any] = test_golden_vector.pytestmark
    of_candidates_and_turns = {"at_grpo", "magrpo", "magrpo_tree"}
    assert {row[0] for row in marks[0].args[1]} == set(PRESETS) - of_candidates_and_turns


def test_constant_groups_are_exactly_zero_and_counted():
    # 0.1 + 0.1 + 0.1 is not 3 * 0.1: a mean by division would leave a tiny advantage.
    calls = [make_call(f"a{n}", "r", 0.1, problem="flat") for n in range(3)]
    calls += [make_call(f"b{n}", "r", float(n), problem="live") for n in range(3)]
    result = compute(calls, "grpo")
    assert result.values[:3].tolist() == [0.0, 0.0, 0.0]
    assert result.values[3] < 0 < result.values[5]
    assert result.zero_variance.tolist() == [True] * 3 + [False] * 3
    assert (result.groups, result.zero_variance_groups, result.singleton_groups) == (2, 1, 0)
    assert math.isnan(result.roles.inflation[0])
    for name in ("dr_grpo", "rloo", "reinforce_max"):
        assert compute(calls, name).values[:3].tolist() == [0.0, 0.0, 0.0]


def test_constant_scale_group_does_not_explode():
    """Only winners reach the answerer: its scale is 0 although its mean differs from the team's."""
    calls = [make_call(f"e{n}", "verifier", float(n < 2)) for n in range(4)]
    calls += [make_call(f"e{n}", "answerer", 1.0) for n in range(2)]
    result = compute(calls, "dr_mas_std")
    assert result.values[4:].tolist() == [0.0, 0.0]
    assert result.zero_variance[4:].all()


@pytest.mark.parametrize(("singleton", "expected"), [("zero", 0.0), ("raw", 1.0), ("widen", 0.5)])
def test_singletons(singleton, expected):
    calls = [make_call("a", "lone", 1.0), make_call("a", "many", 1.0), make_call("b", "many", 0.0)]
    calls.append(make_call("c", "many", 0.0))
    spec = AdvantageSpec(
        target="row", mean_group=("problem", "role"), mean_weight="call", std="none",
        singleton=singleton,
    )  # fmt: skip
    result = compute(calls, spec)
    assert result.values[0] == pytest.approx(expected)
    assert result.singleton.tolist() == [True, False, False, False]
    assert result.singleton_groups == 1
    assert result.values[1:].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_widened_singleton_takes_both_statistics_of_the_wider_group():
    calls = [make_call("a", "lone", 1.0), make_call("a", "many", 1.0), make_call("b", "many", 0.0)]
    spec = replace(PRESETS["dr_mas"], singleton="widen")
    values = compute(calls, spec).values
    assert values[0] == pytest.approx((1 - 2 / 3) / math.sqrt(1 / 3), abs=1e-5)
    assert compute([calls[0]], spec).values.tolist() == [0.0]


def test_episode_target_takes_returns_and_not_row_rewards():
    calls = [make_call("a", "r", 0.0), make_call("b", "r", 0.0)]
    result = compute(calls, "dr_grpo", returns={"a": 1.0, "b": 0.0})
    assert result.values.tolist() == [0.5, -0.5]
    records = [
        EpisodeRecord("w", "t", "p", name, "", "", score, None, False, {}, {})
        for name, score in (("a", 1.0), ("b", 0.0))
    ]
    assert episode_returns(records) == {"a": 1.0, "b": 0.0}


def test_one_episode_id_in_two_problems_is_two_episodes():
    calls = [make_call("0", "r", 1.0, problem="p"), make_call("0", "r", 0.0, problem="q")]
    calls += [make_call("1", "r", 0.0, problem="p"), make_call("1", "r", 0.0, problem="q")]
    assert compute(calls, "dr_grpo").values.tolist() == [0.5, 0.0, -0.5, 0.0]
    across = AdvantageSpec(mean_group=("role",), std="none")
    assert compute(calls[:2] + calls[3:], across).values[0] == pytest.approx(2 / 3)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("pq"), st.integers(0, 4), st.sampled_from("rs")),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from(sorted(PRESETS)),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter(rows, preset, shuffler):
    calls = [
        make_call(str(number), role, float(number % 2), problem=problem, turn=turn, value=turn / 7)
        for turn, (problem, number, role) in enumerate(rows)
    ]
    order = list(range(len(calls)))
    shuffler.shuffle(order)
    straight = compute(calls, preset, state=RunningMean()).values
    shuffled = compute([calls[idx] for idx in order], preset, state=RunningMean()).values
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-9)
    assert np.isfinite(straight).all()


def test_no_rows():
    result = compute([], "dr_mas")
    assert result.values.shape == (0,)
    assert (result.groups, len(result.roles.calls)) == (0, 0)


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (lambda: compute([], "grop"), "Did you mean 'grpo'"),
        (lambda: AdvantageSpec(mean_group=("problem", "rol")), "role"),
        (lambda: AdvantageSpec(mean_group="problem"), "`mean_group` must be a list"),
        (lambda: AdvantageSpec(std_group=()), "tuple"),
        (lambda: AdvantageSpec(mean="median"), "loo"),
        (lambda: compute([make_call("a", "r", 1.0)], "grpo", returns={}), "'a'"),
        (lambda: compute([make_call("a", "r", 1.0, parts={})], "grpo"), "team"),
        (lambda: compute([make_call("a", "r", 1.0), make_call("a", "r", 0.0)], "grpo"), "unique"),
        (lambda: compute([make_call("a", "r", float("nan"))], "dr_mas"), r"row 0 \(.*'a'.*finite"),
        (lambda: compute([make_call("a", "r", 1.0)], "reinforce_role"), "RunningMean"),
        (lambda: compute([make_call("a", "r", 1.0)], "at_grpo"), 'sampling="tree"'),
        (lambda: compute([make_call("a", "r", 1.0)], "magrpo_tree"), 'sampling="joint"'),
        (lambda: AdvantageSpec(gamma=1.5), "gamma"),
        (lambda: AdvantageSpec(decay=1.0), "decay"),
        (lambda: AdvantageSpec(eps=-1.0), "eps"),
    ],
)
def test_mistakes_raise(action, text):
    with pytest.raises(UsageError, match=text):
        action()


def test_an_abstaining_reply_is_not_paid_for_its_teams_success():
    good = make_call("a", "generator", 1.0)
    mute = make_call("a", "aggregator", 0.0, strict=False, abstained=True)
    lost = [make_call("b", "generator", 0.0), make_call("b", "aggregator", 0.0)]
    got = compute([good, mute, *lost], "grpo", {"a": 1.0, "b": 0.0})
    # Episodes 1 and 0: mean .5, sample deviation .7071. The mute reply's own value is 0.
    np.testing.assert_allclose(got.values, [0.7071, -0.7071, -0.7071, -0.7071], atol=1e-4)


def test_returns_are_those_of_the_replies_that_did_not_abstain():
    mute = make_call("a", "aggregator", 0.0, strict=False, abstained=True)
    calls = [mute, make_call("a", "generator", 1.0), make_call("b", "generator", 0.0)]
    assert compute(calls, "dr_grpo").values.tolist() == [-0.5, 0.5, -0.5]


def test_the_papers_groups_are_names_and_its_target_the_episode():
    """Three voters of eight samples: three groups of 8 by agent, one of 24 by role."""
    scores = (1, 1, 0, 0, 0, 0, 0, 0)
    voters = [
        make_call(f"e{sample}", "generator", float(score), agent=f"generator_{slot}", slot=slot)
        for sample, score in enumerate(scores)
        for slot in range(3)
    ]
    math_names = [replace(call, name=call.agent) for call in voters]
    code_names = [replace(call, name=call.role) for call in voters]
    assert compute(math_names, "paper").groups == 3
    assert compute(code_names, "paper").groups == 1
    # The rewards of the calls are not looked at, only their episodes' outcomes.
    unpaid = [replace(call, reward=0.0) for call in math_names]
    np.testing.assert_array_equal(
        compute(unpaid, "paper").values, compute(math_names, "paper").values
    )


def test_a_lone_call_keeps_its_raw_return_in_the_papers_code():
    assert compute([make_call("a", "r", 0.7)], "paper").values.tolist() == [0.7]
    assert compute([make_call("a", "r", 0.7)], "dr_mas").values.tolist() == [0.0]


def test_candidates_of_one_prompt_are_compared_and_nothing_else():
    calls = [
        make_call("e", "tool", 0.0, state_hash=state, candidate=k, executed=k == 0, value=value)
        for state, values in (("s", (1.0, 0.0, 0.0)), ("t", (0.4, 0.8, 0.6)))
        for k, value in enumerate(values)
    ]
    first = np.array([2, -1, -1]) / 3 / math.sqrt(1 / 3)
    second = np.array([-0.2, 0.2, 0.0]) / 0.2
    values = compute(calls, "at_grpo").values
    np.testing.assert_allclose(values, [*first, *second], atol=1e-4)


def test_children_of_a_node_are_compared_by_agent():
    calls = [
        make_call("e", role, 0.0, node=node, value=value)
        for node, role, value in (
            ("x", "helper", 3.0), ("x", "helper", 1.0), ("x", "main", 5.0), ("x", "main", 9.0),
            ("y", "helper", 7.0),
        )
    ]  # fmt: skip
    assert compute(calls, "magrpo_tree").values.tolist() == [1.0, -1.0, -2.0, 2.0, 0.0]


def test_magrpo_compares_a_role_with_itself():
    calls = [
        make_call(episode, role, reward)
        for role, rewards in (("a", (1.0, 0.0)), ("b", (5.0, 9.0)))
        for episode, reward in zip("ef", rewards, strict=True)
    ]
    assert compute(calls, "magrpo").values.tolist() == [0.5, -0.5, -2.0, 2.0]


def test_magrpo_compares_returns_to_go_within_a_turn():
    calls = [
        make_call(episode, "main", share + now, turn=turn, immediate=now)
        for episode, share, nows in (("a", 1.0, (0.25, 0.5)), ("b", 0.0, (0.25, 0.0)))
        for turn, now in enumerate(nows)
    ]
    # Returns to go: a 0.75 + 1 and 0.5 + 1; b 0.25 and 0.
    assert compute(calls, "magrpo").values.tolist() == [0.75, 0.75, -0.75, -0.75]


def test_a_running_mean_judges_by_earlier_batches_and_survives_a_checkpoint():
    state = RunningMean()
    batch = [make_call("a", "r", 1.0), make_call("b", "r", 0.5), make_call("b", "s", 2.0)]
    assert compute(batch, "reinforce_role", state=state).values.tolist() == [1.0, 0.5, 2.0]
    loaded = RunningMean()
    loaded.load_state_dict(json.loads(json.dumps(state.state_dict())))
    for running in (state, loaded):
        again = compute(batch, "reinforce_role", state=running)
        assert again.values.tolist() == pytest.approx([0.25, -0.25, 0.0])
        assert not again.zero_variance.any()
        assert running.means["s",] == 2.0
    third = compute(
        [make_call("c", "r", 0.0), make_call("c", "s", 0.0)], "reinforce_role", None, state
    )
    assert third.values.tolist() == pytest.approx([-0.75, -2.0])
    assert state.means["r",] == pytest.approx(0.99 * 0.75)
    spec = replace(PRESETS["reinforce_role"], mean_group=("agent",))
    with pytest.raises(UsageError, match="role"):
        compute(batch, spec, state=state)


def test_loo_of_a_widened_group_leaves_out_the_wider_groups_item():
    calls = [make_call("a", "lone", 1.0), make_call("a", "many", 0.0), make_call("b", "many", 0.0)]
    spec = AdvantageSpec(
        target="row", mean_group=("problem", "role"), mean="loo", std="none", singleton="widen"
    )
    # In the problem's pool episode a counts with its mean, 0.5, and the other episode with 0.
    assert compute(calls, spec).values.tolist() == [1.0, 0.0, 0.0]


def test_columns_give_the_same_as_their_calls():
    calls = golden_calls()
    columns = CallColumns(calls)
    for preset in ("grpo", "dr_mas", "paper"):
        straight, stored = compute(calls, preset), compute(columns, preset)
        np.testing.assert_array_equal(stored.values, straight.values)
        np.testing.assert_equal(asdict(stored.roles), asdict(straight.roles))


def plain(calls: Sequence[Call], spec: AdvantageSpec) -> list[float]:
    """The definition, written out: lists of rows in dictionaries (no widening)."""
    returns = {(c.problem, c.episode): c.parts["team"] for c in calls}
    rows = [returns[c.problem, c.episode] if spec.target == "episode" else c.reward for c in calls]

    def pool(columns: tuple[str, ...], weight: str, call: Call) -> tuple[list[float], int]:
        key = [getattr(call, name) for name in columns]
        same = [i for i, c in enumerate(calls) if [getattr(c, n) for n in columns] == key]
        if weight == "call":
            me = next(place for place, i in enumerate(same) if calls[i] is call)
            return [rows[i] for i in same], me
        items: dict[tuple[str, str], list[float]] = {}
        for i in same:
            items.setdefault((calls[i].problem, calls[i].episode), []).append(rows[i])
        me = list(items).index((call.problem, call.episode))
        return [sum(values) / len(values) for values in items.values()], me

    found: list[float] = []
    for call, target in zip(calls, rows, strict=True):
        value, alone = target, False
        if spec.mean != "none":
            items, me = pool(spec.mean_group, spec.mean_weight, call)
            alone = len(items) < 2
            others = items[:me] + items[me + 1 :]
            value -= {
                "mean": sum(items) / len(items),
                "max": max(items),
                "loo": sum(others) / len(others) if others else items[0],
            }[spec.mean]
        if spec.std != "none":
            items, _ = pool(spec.std_group, spec.std_weight, call)
            alone = alone or len(items) < 2
            freedom = len(items) - (spec.std == "sample") or 1
            center = sum(items) / len(items)
            deviation = math.sqrt(sum((item - center) ** 2 for item in items) / freedom)
            value = 0.0 if max(items) == min(items) else value / (deviation + spec.eps)
        found.append((target if spec.singleton == "raw" else 0.0) if alone else value)
    return found


COLUMN = st.sampled_from(["problem", "episode", "role", "turn"])
GROUP = st.lists(COLUMN, min_size=1, max_size=3, unique=True).map(tuple)
SPECS = st.builds(
    AdvantageSpec,
    target=st.sampled_from(["episode", "row"]),
    mean_group=GROUP,
    mean=st.sampled_from(["mean", "loo", "max", "none"]),
    mean_weight=st.sampled_from(["episode", "call"]),
    std_group=GROUP,
    std=st.sampled_from(["sample", "population", "none"]),
    std_weight=st.sampled_from(["episode", "call"]),
    singleton=st.sampled_from(["zero", "raw"]),
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from("pq"), st.sampled_from("abc"), st.sampled_from("rs"), st.integers(0, 2),
        st.sampled_from([0.0, 0.25, 1.0]),
    ),
    min_size=1,
    max_size=20,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(ROWS, SPECS)
def test_every_choice_equals_its_definition(rows, spec):
    calls = [
        make_call(
            episode, role, reward, problem=problem, turn=turn,
            parts={"team": float(ord(episode) + ord(problem)) % 3 / 2},
        )
        for problem, episode, role, turn, reward in rows
    ]  # fmt: skip
    np.testing.assert_allclose(compute(calls, spec).values, plain(calls, spec), atol=1e-9)


def test_reinforce_pp_normalizes_over_the_batch():
    """Two problems, by hand: arXiv 2501.03262, with and without the baseline of the group."""
    rewards = {"p": (1.0, 1.0, 0.0), "q": (0.0, 1.0, 0.0)}
    calls = [
        make_call(f"{problem}{n}", "r", reward, problem=problem, policy="one")
        for problem, group in rewards.items()
        for n, reward in enumerate(group)
    ]
    won, lost = 0.5 / math.sqrt(6 * 0.25 / 5), -0.5 / math.sqrt(6 * 0.25 / 5)
    values = compute(calls, "reinforce_pp").values
    np.testing.assert_allclose(values, [won, won, lost, lost, won, lost], atol=1e-5)
    left = np.array([1, 1, -2, -1, 2, -1]) / 3  # rewards less their problem's mean; their mean is 0
    values = compute(calls, "reinforce_pp_base").values
    np.testing.assert_allclose(values, left / math.sqrt(12 / 9 / 5), atol=1e-5)
    # A group that is short of an episode: the mean of the differences is taken off as well.
    spec = replace(PRESETS["reinforce_pp_base"], std_weight="call", mean_weight="episode")
    calls = [*calls[:3], replace(calls[0], turn=1)]
    left = np.array([1, 1, -2, 1]) / 3
    wanted = (left - left.mean()) / left.std(ddof=1)
    np.testing.assert_allclose(compute(calls, spec).values, wanted, atol=1e-5)
    # The rows of another policy are another batch.
    mixed = [*calls, *(replace(call, policy="two", episode="x" + call.episode) for call in calls)]
    np.testing.assert_allclose(
        compute(mixed, "reinforce_pp").values[:4], compute(calls, "reinforce_pp").values
    )


def test_what_is_added_to_a_row_is_judged_with_it():
    calls = [make_call(f"e{n}", "r", reward) for n, reward in enumerate((1.0, 1.0, 0.0))]
    extra = np.array([0.0, -0.5, -1.0])
    values = compute(calls, "dr_grpo", extra=extra).values
    assert values.tolist() == pytest.approx([5 / 6, 1 / 3, -7 / 6])


def test_a_pool_that_is_constant_but_for_rounding_is_constant():
    """Episodes that add up to one return in different orders: the scale of `dr_mas_mean` is 0."""
    orders = [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.2, 0.3, 0.1)]
    calls = [
        make_call(f"e{n}", role, reward)
        for n, rewards in enumerate(orders)
        for role, reward in zip("VSA", rewards, strict=True)
    ]
    returns = {f"e{n}": first + second + third for n, (first, second, third) in enumerate(orders)}
    assert len(set(returns.values())) > 1, "returns differ by rounding, else this tests nothing"
    for name in ("dr_mas_mean", "grpo"):
        result = compute(calls, name, returns)
        assert result.values.tolist() == [0.0] * 9
        assert result.zero_variance.all()
        assert (result.groups, result.zero_variance_groups) == (1, 1)
        assert np.isnan(result.roles.inflation).all()
    for name in ("dr_grpo", "rloo", "reinforce_max"):
        assert compute(calls, name, returns).values.tolist() == [0.0] * 9


NOISE = st.sampled_from([0.0, 3e-16, 1e-13, 1e-9, 6e-8])
"""Up to the rounding of rewards in float32."""


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.sampled_from("pq"), st.sampled_from("abc"), st.sampled_from("rs"),
            st.integers(0, 3), st.floats(-1, 1),
        ),
        min_size=1,
        max_size=12,
    ),
    spec=SPECS.map(lambda spec: replace(spec, target="row", eps=0.0)),
    level=NOISE,
    power=st.integers(-6, 6),
    shift=st.sampled_from([0, 3, 20]),
)  # fmt: skip
def test_rounding_changes_no_advantage(rows, spec, level, power, shift):
    exact: list[Call] = []
    noisy: list[Call] = []
    for turn, (problem, episode, role, reward, noise) in enumerate(rows):
        whole: Any = Fraction(reward + shift)
        call = make_call(episode, role, 0.0, problem=problem, turn=turn)
        exact.append(replace(call, reward=whole))
        noisy.append(replace(call, reward=float(whole) * 10.0**power * (1 + level * noise)))
    unit = 1.0 if spec.std != "none" else 10.0**power
    wanted, got = np.array(plain(exact, spec), np.float64), compute(noisy, spec).values / unit
    raw = compute(noisy, spec).singleton & (spec.singleton == "raw")
    got[raw] *= unit / 10.0**power  # a group of one keeps its reward as it is
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)
    assert np.abs(got).max() <= 30 * 12 * math.sqrt(12)
    if spec.mean != "none" and spec.singleton == "zero":
        straight = [replace(call, reward=call.reward - shift) for call in exact]
        np.testing.assert_allclose(np.array(plain(straight, spec), float), wanted, atol=1e-9)
        if level == 0:
            values = compute([replace(c, reward=float(c.reward)) for c in straight], spec).values
            np.testing.assert_allclose(got, values, atol=1e-7)


def make_turn(agent: str, turn: int, immediate: float, share: float) -> Call:
    return new_call(
        agent=agent,
        role=agent[:-2],
        turn=turn,
        phase=turn,
        parts={"team": share},
        reward=immediate + share,
        immediate=immediate,
    )


def to_go(calls: list[Call], gamma: float) -> list[float]:
    spec = AdvantageSpec(target="return_to_go", gamma=gamma, mean="none", std="none")
    return compute(calls, spec).values.tolist()


CALLS = [
    make_turn("main_0", 0, 0.25, 1.0),
    make_turn("helper_0", 0, 0.5, 1.0),
    make_turn("main_0", 1, 0.125, 1.0),
    make_turn("main_0", 2, 0.5, 1.0),
    make_turn("helper_0", 1, 0.0, 1.0),
]


def test_the_team_outcome_counts_once_per_agent_and_not_per_call():
    # main: 0.25 + 0.125 + 0.5, then 1 once; helper: 0.5 + 0, then 1 once.
    assert to_go(CALLS, 1.0) == [1.875, 1.5, 1.625, 1.5, 1.0]


def test_discount_per_turn_of_the_agent():
    # main from turn 0: 0.25 + 0.125/2 + 0.5/4 + 1/4; helper: 0.5 + 0/2 + 1/2.
    assert to_go(CALLS, 0.5) == [0.6875, 1.0, 0.875, 1.5, 1.0]
    assert to_go(CALLS, 0.0) == [0.25, 0.5, 0.125, 1.5, 1.0]


def test_rows_may_come_in_any_order():
    order = [3, 1, 4, 0, 2]
    straight = to_go(CALLS, 0.5)
    assert to_go([CALLS[row] for row in order], 0.5) == [straight[row] for row in order]


def test_a_reply_that_abstained_is_not_paid_for_its_teams_success():
    mute = replace(CALLS[0], reward=0.25, strict=False)
    assert to_go([mute, CALLS[2], CALLS[3]], 1.0) == [0.875, 1.625, 1.5]


def test_candidates_that_were_not_executed_have_no_return_to_go():
    with pytest.raises(UsageError, match="candidate"):
        to_go([*CALLS, replace(CALLS[0], executed=False, candidate=1)], 1.0)


def test_two_calls_with_one_turn_are_a_mistake():
    with pytest.raises(UsageError, match="main_0"):
        to_go([*CALLS, CALLS[2]], 1.0)


SHIFTS = (-10.0, -1.0, 0.5, 5.0, 100.0)
SCALES = (0.01, 3.0, 50.0)


@dataclass(frozen=True)
class Linear:
    """A reward: a line through the task's score."""

    scale: float = 1.0
    shift: float = 0.0

    def __call__(self, episode: FinishedEpisode) -> float:
        return self.scale * episode.score + self.shift


class Mumbling(ScriptedPolicy):
    """Of its replies, three in ten cannot be read."""

    def _reply(self, request: Request) -> str:
        mute = key_rng("mumble", *request.key).random() < 0.3
        return "" if mute else super()._reply(request)


@cache
def played(sampling: str, reward: Any, credit: str = "team", penalty: float = 0.0) -> RolloutBatch:
    """A batch of voting, in which a third of the replies abstain."""
    workflow = make_workflow(
        "voting_v0", "math", episode_reward=reward, credit=credit, format_penalty=penalty
    )
    policy = Mumbling(workflow, 0.6)
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    tree = TreeSettings(candidates=4, value="rollout", select="first")
    samplers: dict[str, Callable[[], Sampler]] = {
        "episodes": lambda: Rollout(workflow, policy_map),
        "tree": lambda: TreeRollout(workflow, policy_map, tree),
        "joint": lambda: JointRollout(workflow, policy_map, JointSettings(4, "cross", leaves=32)),
    }
    problems = (workflow.task.problem(index, "train") for index in range(5))
    samples = 6 if sampling == "episodes" else 1
    jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(samples)]
    batch = samplers[sampling]().sample(jobs)
    assert 0.2 < np.mean([call.abstained for call in batch.rows]) < 0.4
    return batch


def pay(algorithm: Algorithm) -> tuple[str, float]:
    """Credit rule and penalty under which a call's own part counts where the algorithm sees it."""
    return ("team", 0.0) if algorithm.advantage.target == "episode" else ("mix", 0.125)


def judged(algorithm: Algorithm, reward: Any, origin: float | None) -> np.ndarray:
    """The advantages of two batches, one after the other."""
    batch, state = played(algorithm.sampling, reward, *pay(algorithm)), RunningMean()
    judge = AdvantageComputer(algorithm.advantage, origin=origin)
    return np.concatenate([judge(batch, state).values for _ in range(2)])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_constant_in_the_reward_changes_no_advantage(name):
    algorithm = ALGORITHMS[name]
    plain = judged(algorithm, None, 0.0)
    assert np.abs(plain).max() > 0.4
    np.testing.assert_array_equal(judged(algorithm, Linear(), None), plain)
    for shift in SHIFTS:
        np.testing.assert_allclose(judged(algorithm, Linear(1.0, shift), None), plain, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_factor_of_the_reward_is_a_factor_of_advantages_without_a_scale(name):
    algorithm = ALGORITHMS[name]
    spec, judge = algorithm.advantage, AdvantageComputer(algorithm.advantage, origin=None)
    plain = judge(played(algorithm.sampling, None), RunningMean()).values
    lone = judge(played(algorithm.sampling, None), RunningMean()).singleton
    for scale in SCALES:
        batch = played(algorithm.sampling, Linear(scale, -2.0))
        values = judge(batch, RunningMean()).values
        raw = lone if spec.singleton == "raw" else np.zeros_like(lone)
        factor = np.where(raw | (spec.std == "none"), scale, 1.0)
        np.testing.assert_allclose(values, factor * plain, rtol=1e-3, atol=1e-6 * scale)


def length(episode: FinishedEpisode) -> float:
    """A reward that does not look at the score."""
    return -3.0 - sum(len(text) for _, text in episode.replies) / 100


def reverse(episode: FinishedEpisode) -> float:
    """A reward that pays for failing."""
    return -episode.score


@pytest.mark.parametrize("reward", [None, Linear(1.0, -1.0), Linear(1.0, 5.0), length, reverse])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_abstained_is_never_better_than_the_worst_that_was_read(name, reward):
    algorithm = ALGORITHMS[name]
    spec, batch = algorithm.advantage, played(algorithm.sampling, reward)
    values = AdvantageComputer(spec, origin=None)(batch, RunningMean()).values
    groups = Groups(CallColumns(batch.rows)).by((*spec.mean_group, *spec.std_group)).codes
    silent, some = np.array([call.abstained for call in batch.rows]), 0
    for group in range(groups.max() + 1):
        read, mute = (values[(groups == group) & which] for which in (~silent, silent))
        if len(read) and len(mute):
            some += 1
            assert mute.max() <= read.min() + 1e-9
    assert some


def make_reply(episode: str, role: str, team: float, *, abstained: bool = False) -> Call:
    return new_call(
        episode=episode,
        role=role,
        strict=not abstained,
        parts={"team": team},
        reward=team,
        abstained=abstained,
    )


@pytest.mark.parametrize("shift", [0.0, *SHIFTS])
def test_the_lowest_outcome_of_the_group_bounds_what_abstaining_pays(shift):
    scores = {"a": 1.0, "b": -2.0, "c": 0.0}
    calls = [make_reply(name, "generator", score + shift) for name, score in scores.items()]
    calls += [make_reply(name, "judge", scores[name] + shift) for name in "bc"]
    calls.append(make_reply("a", "judge", shift, abstained=True))
    returns = {name: score + shift for name, score in scores.items()}
    grpo = compute(calls, "grpo", returns).values
    assert grpo[5] == grpo[1] == grpo[3] == grpo.min()
    groups = Groups(CallColumns(calls))
    for spec in (PRESETS["dr_mas"], PRESETS["dr_mas_std"]):
        assert own_rewards(groups, spec)[5] == shift - 2.0
    assert own_rewards(groups, AdvantageSpec(target="row", mean_group=("episode",)))[5] == shift


class Below(Workflow):
    """A script that scores its episodes itself, below zero."""

    name: ClassVar[str] = "below_v0"
    roles: ClassVar[dict[str, int]] = {"solver": 1, "checker": 1}
    score_range: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def play(self, problem: Problem) -> Script:
        answer = yield Ask("solver_0", self.task.prompt(problem), self.task.answer)
        yield Ask("checker_0", self.task.prompt(problem), self.task.answer)
        low, high = self.score_range
        return Outcome(answer.strict, high if answer.strict == problem.gold else low)


class Above(Below):
    """The same on the usual scale."""

    name: ClassVar[str] = "above_v0"
    score_range: ClassVar[tuple[float, float]] = (0.0, 1.0)


def test_a_script_that_scores_below_zero_teaches_the_same():
    found: list[np.ndarray] = []
    for kind in (Below, Above):
        workflow = kind(make_task("math"))
        policy_map = PolicyMap.shared(Mumbling(workflow, 0.6), workflow.role_counts())
        problems = (workflow.task.problem(index, "train") for index in range(4))
        jobs = [EpisodeJob(problem, sample) for problem in problems for sample in range(8)]
        batch = Rollout(workflow, policy_map).sample(jobs)
        assert any(call.abstained and record.score for record in batch.records
                   for call in record.calls)  # fmt: skip
        found.append(AdvantageComputer(PRESETS["dr_mas"])(batch, RunningMean()).values)
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0]).max() > 0.4
