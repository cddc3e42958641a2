"""Records of finished episodes as plain values, and the hashes of states."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from flowzoo.agents.evaluation.evaluate import record_from_json
from flowzoo.envs import make_workflow
from flowzoo.envs.api.aec import WorkflowEnv


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
    assert json.dumps(record.to_json()) == json.dumps(asdict(record))
    again = record_from_json(json.loads(json.dumps(record.to_json())))
    assert json.dumps(again.to_json()) == json.dumps(asdict(record))


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
    found = [hasher.hexdigest()]
    for entry in episode.log:
        feed(*(("r", entry) if isinstance(entry, str) else ("e", repr(tuple(entry)))))
        found.append(hasher.hexdigest())
    lengths = [turn.logged for turn in episode.turns]
    assert [call.state_hash for call in record.calls] == [found[length] for length in lengths]
    assert len(set(lengths)) == 2
