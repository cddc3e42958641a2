"""The policy-swap probe: who sits where, and what it costs; scripted role scores and a real run."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

from flowzoo.agents import PolicyMap
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.policy import Request
from flowzoo.agents.policy_map import Lengths
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
from flowzoo.agents.scripted import ScriptedPolicy
from flowzoo.baselines.diagnostics.swap import (
    policy_slots,
    policy_swaps,
    swap_probe,
    with_thinking_of,
)
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.finished import open_finished, read_finished, run_swaps
from flowzoo.baselines.training.trainer import train
from flowzoo.cli import main
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.errors import UsageError

ORCH = make_workflow("orch_workers_v0", "math")
VOTING = make_workflow("voting_v0", "math")
PROBLEMS = distinct_problems(VOTING.task, "validation", 60)


def test_places_are_roles_or_agents_where_a_role_has_several_policies():
    roles = {"generator": 2, "aggregator": 1}
    assert policy_slots(roles, {"generator": "a", "aggregator": "b"}) == {
        "generator": "a", "aggregator": "b"
    }  # fmt: skip
    assert policy_slots(roles, {"generator_0": "a", "generator_1": "c", "aggregator": "b"}) == {
        "generator_0": "a", "generator_1": "c", "aggregator": "b"
    }  # fmt: skip
    assert policy_slots(roles, {"generator": "a", "generator_1": "a", "aggregator": "b"}) == {
        "generator": "a", "aggregator": "b"
    }  # fmt: skip


def test_every_pair_of_different_policies_is_exchanged_and_budgets_stay():
    made = {name: ScriptedPolicy(ORCH, 0.5, name=name) for name in "ab"}
    mapping = {"orchestrator": "a", "worker": "b", "synthesizer": "b"}
    lengths = {"orchestrator": Lengths(None, 9)}
    found = policy_swaps(ORCH.role_counts(), mapping, made, lengths)
    assert [swap.roles for swap in found] == [
        ("orchestrator", "worker"), ("orchestrator", "synthesizer")
    ]  # fmt: skip
    first, second = (swap.policy_map for swap in found)
    assert first.entries == {"orchestrator": "b", "worker": "a", "synthesizer": "b"}
    assert second.entries == {"orchestrator": "b", "worker": "b", "synthesizer": "a"}
    assert first.lengths("orchestrator_0").reply == 9
    assert first.lengths("worker_0").reply is None
    assert policy_swaps(ORCH.role_counts(), dict.fromkeys(mapping, "a"), made, {}) == []


def test_a_specialist_in_the_wrong_place_costs_what_it_did_there():
    # Good generators and a poor aggregator, exchanged: both roles change what they are worth.
    made = {
        "good": ScriptedPolicy(VOTING, 1.0, name="good"),
        "poor": ScriptedPolicy(VOTING, 0.0, name="poor"),
    }
    mapping = {"generator": "good", "aggregator": "good"}
    mixed = {"generator": "good", "aggregator": "poor"}

    def play(policy_map: PolicyMap) -> Sequence[EpisodeRecord]:
        return Rollout(VOTING, policy_map, seed=0).run(
            [EpisodeJob(problem) for problem in PROBLEMS]
        )

    before = [record.score for record in play(PolicyMap.from_map(mixed, made))]
    assert sum(before) == len(before)  # every candidate is right: the aggregator cannot be wrong
    (found,) = swap_probe(play, VOTING.role_counts(), mixed, made, {}, before)
    assert found["roles"] == ["generator", "aggregator"]
    assert found["policies"] == ["good", "poor"]
    assert (found["accuracy"], found["mean"], found["n"]) == (0.0, -1.0, 60)
    assert (found["low"], found["high"]) == (-1.0, -1.0)
    assert found["scores"] == [0.0] * 60
    assert swap_probe(play, VOTING.role_counts(), mapping, made, {}, before) == []
    with pytest.raises(UsageError, match="equally long"):
        swap_probe(play, VOTING.role_counts(), mixed, made, {}, before[1:])


def test_the_switch_for_thoughts_stays_with_the_role():
    plain = TransformersPolicy.from_pretrained(pocket_path("math"), name="a")
    template = str(plain.tokenizer.chat_template)
    switched = TransformersPolicy.from_pretrained(pocket_path("math"), name="b")
    switched.tokenizer.chat_template = (
        "{% if enable_thinking %}{{ messages[0]['content'] }}{% endif %}" + template
    )
    on = TransformersPolicy(switched.model, switched.tokenizer, name="b", thinking=True)
    made = {"a": TransformersPolicy(plain.model, switched.tokenizer, name="a"), "b": on}
    mapping = {"generator": "a", "aggregator": "b"}
    (swap,) = policy_swaps(VOTING.role_counts(), mapping, made, {})
    took, gave = swap.policy_map.policy("aggregator_0"), swap.policy_map.policy("generator_0")
    assert (took.thinking, gave.thinking) == (True, None)  # type: ignore[attr-defined]
    assert took.name == "a (thinking: True)"
    assert with_thinking_of(on, on) is on
    message = {"role": "user", "content": "1 + 2"}
    request = Request(key=(0,), agent="x", role="x", messages=[message])
    thought, usual = (
        asyncio.run(policy.generate([request]))[0].prompt_ids for policy in (took, made["a"])
    )
    assert len(thought) > len(usual)  # the template has seen the switch
    with pytest.raises(UsageError, match=r"this model's has none"):
        with_thinking_of(plain, on)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Isolated voting, two steps."""
    root = tmp_path_factory.mktemp("swap") / "run"
    train(
        TrainConfig(
            workflow="voting", sharing=("isolated",), steps=2, problems=2, samples=2, threads=1,
            eval_problems=6, max_tokens=32, lr=1e-3, out=str(root),
        )
    )  # fmt: skip
    return root


@pytest.mark.full
def test_a_finished_run_is_probed_once(run, capsys):
    assert main(["swap", str(run)]) == 0
    said = capsys.readouterr().out
    assert "generator <-> aggregator" in said
    found = json.loads((run / "swaps.json").read_text())
    last = read_finished(run).evaluations[-1]
    assert (found["step"], found["scores"]) == (2, last["eval/scores"])
    (swap,) = found["swaps"]
    with open_finished(run) as opened:
        turned = {"generator": "aggregator", "aggregator": "generator"}
        policy_map = PolicyMap.from_map(
            turned, opened.engines.eval_policies, opened.plan.budgets.roles
        )
        records = opened.evaluation.play(policy_map)
    answered = {(call.role, call.policy) for record in records for call in record.calls}
    assert answered == {("generator", "aggregator"), ("aggregator", "generator")}
    assert [record.score for record in records] == swap["scores"]
    assert swap["mean"] == pytest.approx(swap["accuracy"] - found["accuracy"])

    path = run / "swaps.json"
    path.write_text(json.dumps(found | {"accuracy": 0.125}))
    assert run_swaps(run)["accuracy"] == 0.125  # not measured again
    path.write_text(json.dumps(found | {"step": 1}))
    assert run_swaps(run) == found
    assert main(["swap", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_a_shared_policy_has_nothing_to_exchange(tmp_path, capsys):
    config = TrainConfig(steps=1, problems=1, samples=2, threads=1, eval_problems=2)
    train(replace(config, out=str(tmp_path)))
    assert main(["swap", str(tmp_path)]) == 0
    assert "nothing to exchange" in capsys.readouterr().out
    assert main(["swap", str(tmp_path / "checkpoints")]) == 2
    assert "not a run directory" in capsys.readouterr().err
