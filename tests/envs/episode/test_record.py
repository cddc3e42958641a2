"""Records of finished episodes as plain values, and the hashes of states."""

import hashlib
import json
import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.envs import make_workflow
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.workflow import FinishedEpisode


def played(name: str, task: str | None = None) -> WorkflowEnv:
    """An environment after an episode of sampled replies."""
    env = WorkflowEnv(make_workflow(name, task))
    env.reset(seed=3)
    for agent in env.agent_iter():
        over = env.terminations[agent] or env.truncations[agent]
        env.step(None if over else env.action_space(agent).sample())
    return env


@pytest.mark.parametrize(
    ("name", "task"), [("voting_v0", "math"), ("search_team_v0", None), ("writing_pair_v0", None)]
)
def test_plain_values_are_those_of_asdict(name, task):
    record = played(name, task).record()
    calls = tuple(
        replace(call, prompt_ids=(1, 2), output_ids=[3], logps=(-0.1,)) for call in record.calls
    )
    facts: dict[str, Any] = {**record.facts, "list": [1, {"a": (2, 3)}], "none": None}
    record = replace(record, calls=calls, facts=facts)
    values = asdict(record)
    assert values.pop("judgments") == ()  # left out where no judge was asked
    assert values.pop("pay") == {}  # and where no agent has pay of its own
    for call in values["calls"]:  # left out where there are none
        assert (call.pop("tools"), call.pop("fault"), call.pop("writers")) == ((), "", ())
    assert json.dumps(record.to_json()) == json.dumps(values)
    again = record_from_json(json.loads(json.dumps(record.to_json())))
    assert json.dumps(again.to_json()) == json.dumps(values)


@pytest.mark.parametrize(("options", "levels"), [({"level": "2-3"}, [2, 3]), ({}, [1, 1])])
def test_a_record_has_the_level_of_its_problem(options, levels):
    workflow = make_workflow("single_v0", "math", **options)
    for index, level in enumerate(levels):
        env = WorkflowEnv(workflow)
        env.reset(options={"index": index})
        for agent in env.agent_iter():
            env.step(None if env.terminations[agent] else "4")
        assert env.record().level == level


def test_the_mappings_of_plain_values_are_the_callers_own():
    record = played("voting_v0", "math").record()
    row = record.to_json()
    row["calls"][0]["parts"]["team"] = row["facts"]["chosen"] = row["returns"]["x"] = 7
    row["calls"][0]["messages"][0]["content"] = "changed"
    assert 7 not in (record.calls[0].parts["team"], record.facts["chosen"], len(record.returns))
    assert record.calls[0].messages[0]["content"] != "changed"


def test_a_hash_is_of_all_that_was_said_behind_kinds_and_lengths():
    env = played("voting_v0", "math")
    episode, record = env.episode, env.record()
    hasher = hashlib.blake2b(episode.workflow.spec_digest, digest_size=16)

    def feed(kind: str, text: str) -> None:
        raw = text.encode("utf-8", "surrogatepass")
        hasher.update(f"{kind}{len(raw)}:".encode() + raw)

    feed("p", episode.problem.id)
    feed("p", episode.problem.text)
    results = [hasher.hexdigest()]
    for entry in episode.log:
        feed(*(("r", entry) if isinstance(entry, str) else ("e", repr(tuple(entry)))))
        results.append(hasher.hexdigest())
    lengths = [turn.logged for turn in episode.turns]
    assert [call.state_hash for call in record.calls] == [results[length] for length in lengths]
    assert len(set(lengths)) == 2


def minus(episode: FinishedEpisode) -> float:
    """A reward of one's own: 3 for a right answer, -2 for a wrong one and -2.5 without any."""
    return 5.0 * episode.score - 2.0 - 0.5 * (episode.answer is None)


def test_what_could_not_be_read_is_paid_what_no_answer_is():
    env = WorkflowEnv(make_workflow("voting_v0", "math", episode_reward=minus))
    env.reset(seed=3)
    task, problem = env.workflow.task, env.episode.problem
    right = task.solve(problem, random.Random(0), True)
    for reply in (right, right, "who knows", "\\boxed{1}"):
        env.step(reply)
    record = env.record()
    assert record.score == 3.0
    assert [call.reward for call in record.calls] == [3.0, 3.0, -2.5, 3.0]
    assert [call.parts["team"] for call in record.calls] == [3.0, 3.0, -2.5, 3.0]
    assert [call.abstained for call in record.calls] == [False, False, True, False]
    assert list(record.returns.values()) == [3.0, 3.0, -2.5, 3.0]
    remaining = WorkflowEnv(
        make_workflow("voting_v0", "math", preset="paper", episode_reward=minus)
    )
    remaining.reset(seed=3)
    for reply in (right, right, "who knows", "\\boxed{1}"):
        remaining.step(reply)
    assert [call.reward for call in remaining.record().calls] == [3.0] * 4
    assert not any(call.abstained for call in remaining.record().calls)


def test_an_episode_that_was_cut_off_is_paid_what_no_answer_is():
    env = WorkflowEnv(make_workflow("eval_opt_v0", "math", episode_reward=minus), max_cycles=1)
    env.reset(seed=3)
    while not all(env.truncations.values()):
        env.step("#### 0\nREJECT")
    record = env.record()
    assert (record.truncated, record.score) == (True, -2.5)
    assert {call.reward for call in record.calls} == {-2.5}
    assert set(record.returns.values()) == {-2.5}


def test_a_reward_is_computed_once_an_episode():
    paid = iter([0.25, 0.75])
    env = WorkflowEnv(
        make_workflow("single_v0", "math", episode_reward=lambda episode: next(paid)),
        render_mode="ansi",
    )
    env.reset(seed=3)
    env.step("\\boxed{1}")
    assert env.last()[1] == 0.25
    env.infos["generator_0"]["parts"][0]["team"] = 7.0
    assert "score 0.25" in env.render()
    for record in (env.record(), env.record()):
        assert (record.score, record.returns) == (0.25, {"generator_0": 0.25})
        assert record.calls[0].parts["team"] == 0.25
        record.calls[0].parts["team"] = record.returns["generator_0"] = 7.0
    env.reset(seed=3)
    env.step("\\boxed{1}")
    assert env.record().score == 0.75
