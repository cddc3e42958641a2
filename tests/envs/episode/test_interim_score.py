"""Scores while an episode is under way: of roles, and of the episode if it ended now."""

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from flowzoo.envs import Ask, Episode, InterimScore, Outcome, Workflow, WorkflowError, make_workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.tasks.math import MathTask
from flowzoo.envs.testing import advance
from flowzoo.seeding import key_rng

LATE = {"orchestrator"}
"""Roles whose score is known only when others have answered."""


@dataclass(frozen=True)
class Says(Workflow):
    """Stands at what the writer says, once."""

    name: ClassVar[str] = "says_v0"
    roles: ClassVar[dict[str, int]] = {"writer": 1}
    score: Any = 0.5

    def play(self, problem):
        yield Ask("writer_0", "write")
        yield InterimScore(self.score)
        reply = yield Ask("writer_0", "again")
        return Outcome(reply.text, 1.0)


def test_a_standing_holds_is_replayed_and_pays_nothing():
    workflow = Says(MathTask())
    episode = Episode(workflow, workflow.task.problem(0), "e")
    assert (episode.interim_score, episode.interim_phase) == (None, 0)
    episode.reply("writer_0", "x")
    for twin in (episode, episode.fork(), pickle.loads(pickle.dumps(episode))):
        assert (twin.interim_score, twin.interim_phase) == (0.5, 1)
    episode.reply("writer_0", "y")
    assert (episode.interim_score, episode.interim_phase) == (0.5, 1)
    assert [call.reward for call in record(episode).calls] == [1.0, 1.0]


@pytest.mark.parametrize("score", [1.5, -0.1, float("nan"), "high"])
def test_an_impossible_standing_is_the_scripts_error(score):
    workflow = Says(MathTask(), score=score)
    episode = Episode(workflow, workflow.task.problem(0))
    with pytest.raises(WorkflowError, match=r"InterimScore takes a number|not supported"):
        episode.reply("writer_0", "x")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("voting_v0", "math"),
        ("eval_opt_v0", "math"),
        ("orch_workers_v0", "math"),
        ("reasoner_tool_v0", "math"),
        ("search_team_v0", "search"),
        ("tool_planner_v0", "plan_path"),
        ("coder_tester_v0", "code"),
        ("code_pair_v0", "code"),
    ],
)
def test_role_scores_are_known_before_the_next_agent_is_asked(name, task):
    """So that tree sampling can value replies at once; and a standing is the score to come."""
    workflow = make_workflow(name, task)
    phases = 0
    for index in range(4):
        problem = workflow.task.problem(index)
        episode = Episode(workflow, problem, "e")
        rng = key_rng("standing", index)
        advance(episode)
        while not episode.done:
            for turn in episode.waiting:
                role = workflow.agents[turn.agent][0]
                right = rng.random() < 0.5
                episode.reply(
                    turn.agent, workflow.expert(role, turn.observe(), problem, rng, right)
                )
            advance(episode)
            phases += 1
            for turn in episode.turns:
                is_scored = turn.reply is None or turn.call in episode.role_scores
                late = workflow.agents[turn.agent][0] in LATE
                assert is_scored or (late and not episode.done), turn.agent
        if episode.interim_score is not None:
            assert episode.interim_score == pytest.approx(episode.finished().score)
    assert phases > 4
