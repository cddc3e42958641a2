import random
from typing import Any

import pytest

from flowzoo.agents import PolicyMap
from flowzoo.agents.rollout.settings import TreeSettings
from flowzoo.agents.rollout.tree import TreeRollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.envs import make_workflow
from flowzoo.envs.script import Reply
from flowzoo.envs.text import boxed_number
from flowzoo.errors import UsageError
from tests.envs.playing import play
from tests.tables import read_tables

GENERATORS = ("generator_0", "generator_1", "generator_2")
DRAFTS = ("3*4=12. \\boxed{14}", "2+3=5. \\boxed{20}", "I am not sure.")


def replies(*drafts: str, choice: str | None = None) -> dict[str, list[str]]:
    built = {agent: [text] for agent, text in zip(GENERATORS, drafts, strict=False)}
    return built if choice is None else built | {"aggregator_0": [choice]}


def test_golden_transcript():
    finished = play("voting_v0", replies(*DRAFTS, choice="The first. \\boxed{1}"))
    prompt = "Compute 2+3*4.\nPut the final answer in \\boxed{}."
    ballot = (
        "Compute 2+3*4.\n\nCandidate 1:\n3*4=12. \\boxed{14}\n\nCandidate 2:\n2+3=5. \\boxed{20}"
        "\n\nCandidate 3:\nI am not sure.\n\n"
        "Which candidate is right? Put its number in \\boxed{}."
    )
    assert [
        (call.agent, call.role, call.slot, call.turn, call.phase, call.messages[0]["content"])
        for call in finished.calls
    ] == [
        ("generator_0", "generator", 0, 0, 0, prompt),
        ("generator_1", "generator", 1, 0, 0, prompt),
        ("generator_2", "generator", 2, 0, 0, prompt),
        ("aggregator_0", "aggregator", 0, 0, 1, ballot),
    ]
    assert all(
        [message["role"] for message in call.messages] == ["user"] for call in finished.calls
    )
    assert (finished.score, finished.answer, finished.gold) == (1.0, "14", "14")
    assert dict(finished.facts) == {
        "any_correct": True,
        "all_correct": False,
        "contested": True,
        "recovered": True,
        "chosen": 0,
        "abstained": False,
    }


def test_rewards_by_hand_under_every_credit():
    texts = replies(*DRAFTS, choice="\\boxed{1}")
    # The third generator is unreadable: under strict it abstains and earns no team reward.
    assert [c.reward for c in play("voting_v0", texts).calls] == [1.0, 1.0, 0.0, 1.0]
    local = [0.2 + 0.8, 0.2, 0.0, 0.2 + 0.8]
    assert [c.reward for c in play("voting_v0", texts, credit="local").calls] == local
    mixed = play("voting_v0", texts, credit="mix", alpha=0.5)
    assert [c.reward for c in mixed.calls] == [1.5, 0.7, 0.0, 1.5]
    ruled = play("voting_v0", texts, credit=lambda parts: 10 * parts["local"] - parts["team"])
    assert [c.reward for c in ruled.calls] == pytest.approx([9.0, 1.0, 0.0, 9.0])
    fined = play("voting_v0", texts, format_penalty=0.25)
    assert [c.reward for c in fined.calls] == [1.0, 1.0, -0.25, 1.0]
    assert [c.parts.get("format") for c in fined.calls] == [0.0, 0.0, -0.25, 0.0]
    weighted = play("voting_v0", texts, credit="local", local_weights=(0.5, 2.0))
    assert [c.reward for c in weighted.calls] == [2.5, 0.5, 0.0, 2.5]


def test_immediate_rewards_leave_the_teams_share_out():
    texts = replies(*DRAFTS, choice="\\boxed{1}")

    def immediate(**settings: Any) -> list[float]:
        return [call.immediate for call in play("voting_v0", texts, **settings).calls]

    assert immediate() == [0.0, 0.0, 0.0, 0.0]
    assert immediate(format_penalty=0.1) == [0.0, 0.0, -0.1, 0.0]
    local = [0.2 + 0.8, 0.2, 0.0, 0.2 + 0.8]
    assert immediate(credit="local") == immediate(credit="mix", alpha=0.5) == local
    assert immediate(credit=lambda parts: 3 * parts["team"] + 1) == [1.0, 1.0, 1.0, 1.0]


def test_trajectory_names_are_agents_on_mathematics_and_roles_on_programs():
    calls = play("voting_v0", replies(*DRAFTS, choice="\\boxed{1}")).calls
    assert [call.name for call in calls] == [*GENERATORS, "aggregator_0"]
    programs = make_workflow("voting_v0", "code")
    assert {programs.trajectory(agent) for agent in programs.agents} == {"generator", "aggregator"}


def test_role_scores_are_recorded_under_team_credit_too():
    finished = play("voting_v0", replies(*DRAFTS, choice="\\boxed{2}"))
    assert (finished.score, finished.facts["recovered"]) == (0.0, False)
    assert [call.role_score for call in finished.calls] == [1.0, 0.0, 0.0, 0.0]
    assert finished.returns == dict.fromkeys(("aggregator_0", *GENERATORS), 0.0)


@pytest.mark.parametrize(("choice", "strict", "paper"), read_tables(__file__)["choices"])
def test_strict_and_paper_choices(choice, strict, paper):
    """(paper): else any lone digit in range, else candidate 1; strict abstains."""
    texts = replies(*DRAFTS, choice=choice)
    for preset, chosen in (("strict", strict), ("paper", paper)):
        finished = play("voting_v0", texts, preset=preset)
        assert finished.facts["chosen"] == chosen
        assert finished.facts["abstained"] == (chosen == -1)
        assert finished.score == float(chosen == 0)


def test_an_abstaining_aggregator_costs_the_team_and_is_counted():
    finished = play("voting_v0", replies(*(["\\boxed{14}"] * 3), choice="all fine"))
    assert (finished.score, finished.answer) == (0.0, None)
    assert (finished.calls[3].strict, finished.calls[3].role_score) == (False, 0.0)
    assert finished.facts["all_correct"] is True
    assert finished.facts["contested"] is False


def test_paper_reads_drafts_leniently_and_both_rates_are_logged_always():
    drafts = ("The answer is 14.", "\\boxed{20}", "nothing")
    for preset, score in (("strict", 0.0), ("paper", 1.0)):
        finished = play("voting_v0", replies(*drafts, choice="\\boxed{1}"), preset=preset)
        assert [call.strict for call in finished.calls] == [False, True, False, True]
        assert [call.lenient for call in finished.calls] == [True, True, False, True]
        assert finished.score == score
    assert [call.reward for call in finished.calls] == [1.0] * 4  # paper withholds nothing


def test_without_a_right_candidate_most_of_the_aggregators_local_reward_is_withheld():
    texts = replies("\\boxed{1}", "\\boxed{2}", "\\boxed{3}", choice="\\boxed{1}")
    finished = play("voting_v0", texts, credit="local")
    assert finished.calls[3].reward == 0.2
    assert finished.facts["any_correct"] is False


@pytest.mark.parametrize(
    ("drafts", "answer", "score"),
    [
        (("\\boxed{20}", "\\boxed{14}", "\\boxed{14.0}"), "14", 1.0),
        (("\\boxed{20}", "\\boxed{14}", "\\boxed{5}"), "20", 0.0),
        (("no", "no", "\\boxed{28/2}"), "28/2", 1.0),
        (("no", "\\boxed{14}", "\\boxed{20}"), "14", 1.0),
        (("no", "no", "no"), None, 0.0),
    ],
)
def test_majority_counts_equivalent_answers_without_an_aggregator(drafts, answer, score):
    finished = play("voting_v0", replies(*drafts), aggregate="majority")
    assert (finished.answer, finished.score) == (answer, score)
    assert set(finished.returns) == set(GENERATORS)
    assert finished.facts["abstained"] == (answer is None)


def test_n_votes_sets_agents_and_range():
    texts = {f"generator_{i}": [f"\\boxed{{{i}}}"] for i in range(15)}
    texts["generator_11"] = ["\\boxed{14}"]
    finished = play("voting_v0", texts | {"aggregator_0": ["\\boxed{12}"]}, n_votes=15)
    assert finished.score == 1.0
    assert "Candidate 15:\n\\boxed{14}" in finished.calls[-1].messages[0]["content"]


def test_thoughts_stay_with_their_author_and_braces_are_harmless():
    texts = replies("<think>secret {0}</think>{x} \\boxed{14}", "a", "b", choice="\\boxed{1}")
    finished = play("voting_v0", texts)
    ballot = finished.calls[3].messages[0]["content"]
    assert "secret" not in ballot
    assert "Candidate 1:\n{x} \\boxed{14}" in ballot
    assert finished.score == 1.0


@pytest.mark.parametrize("right", [0, 1, 2])
def test_the_expert_finds_the_only_right_candidate(right):
    workflow = make_workflow("voting_v0", "math")
    problem = workflow.task.problem(0)
    texts = [workflow.task.solve(problem, random.Random(slot), slot == right) for slot in range(3)]
    drafts = [Reply(slot, f"generator_{slot}", text, text, text) for slot, text in enumerate(texts)]
    messages = [{"role": "user", "content": workflow.aggregator_prompt(problem, drafts)}]
    for skill, expected in ((True, [right + 1]), (False, {1, 2, 3} - {right + 1})):
        choice = workflow.expert("aggregator", messages, problem, random.Random(0), skill)
        assert boxed_number(choice, 3) in expected


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ("\\boxed{3}, not \\boxed{2}", 2),
        ("\\boxed{14}: candidates 2 and 1", 1),
        ("Of 5 candidates the right one is 2.", 0),
        ("none", 0),
        ("", 0),
    ],
)
def test_published_takes_the_first_box_the_first_digit_or_the_first_candidate(choice, chosen):
    drafts = ("\\boxed{14}", "\\boxed{14}", "14")
    finished = play("voting_v0", replies(*drafts, choice=choice), preset="published")
    assert (finished.facts["chosen"], finished.facts["abstained"]) == (chosen, False)
    assert [call.reward for call in finished.calls] == [float(chosen < 2)] * 4  # 14 has no box


RUBRIC = [
    # Texts of the generators and of the aggregator, and the rewards by hand.
    (DRAFTS, "\\boxed{1}", [0.5 + 0.5, 0.5 - 1.0, 0.5, 1.0]),
    (DRAFTS, "\\boxed{2}", [0.5, -1.0, 0.0, -1.0]),
    (("\\boxed{1}", "\\boxed{2}", "no"), "\\boxed{1}", [-1.0, -1.0, 0.0, 0.0]),
    (("\\boxed{14}",) * 3, "\\boxed{3}", [1.0, 1.0, 1.0, 1.0]),
]


@pytest.mark.parametrize(("drafts", "choice", "rewards"), RUBRIC)
def test_the_rubric_pays_every_generator_and_the_choice_by_hand(drafts, choice, rewards):
    texts = replies(*drafts, choice=choice)
    finished = play("voting_v0", texts, credit="rubric", preset="published")
    assert [call.reward for call in finished.calls] == rewards
    assert [call.team_share for call in finished.calls] == [0.0] * 4
    strict = play("voting_v0", texts, credit="rubric")
    read = [reward - 0.5 * (draft is drafts[2] and reward == 0.5)  # what abstains has no share
            for draft, reward in zip((*drafts, choice), rewards, strict=True)]  # fmt: skip
    assert [call.reward for call in strict.calls] == read
    fined = play("voting_v0", texts, credit="rubric", format_penalty=2.0)
    unread = [0.0 if call.strict else -2.0 for call in fined.calls]
    assert [call.reward for call in fined.calls] == pytest.approx(
        [reward + fine for reward, fine in zip(read, unread, strict=True)]
    )


def test_a_majority_is_paid_by_the_rubric_too_and_other_workflows_have_none():
    finished = play("voting_v0", replies(*DRAFTS), aggregate="majority", credit="rubric")
    assert [call.reward for call in finished.calls] == [1.0, -0.5, 0.0]
    with pytest.raises(UsageError, match="single_v0 has no rubric: expected credit team, local"):
        make_workflow("single_v0", credit="rubric")
    voting = make_workflow("voting_v0", credit="rubric")
    policy_map = PolicyMap.shared(ScriptedPolicy(voting, 1.0), voting.role_counts())
    with pytest.raises(UsageError, match="a rubric or a credit rule of your own is applied to"):
        TreeRollout(voting, policy_map, TreeSettings(value="now"))
