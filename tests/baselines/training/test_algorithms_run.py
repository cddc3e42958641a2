"""Every algorithm in the trainer: which rows it learns from, and runs that go on after a crash."""

import json
from collections import defaultdict
from collections.abc import Callable, Hashable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.envs import Call
from tests.baselines.rows import copy_after
from tests.baselines.training.recorder import Recorder

SMALL: dict[str, Any] = {
    "steps": 2, "problems": 2, "eval_problems": 2, "eval_every": 2, "checkpoint_every": 1,
    "transcripts_every": 1, "threads": 1, "warmup": 0, "lr": 5e-3, "max_tokens": 24,
    "model": "pocket:xs",
}  # fmt: skip
Learnt = list[tuple[int, str, Call, float]]


def config(root: Path, **changes: Any) -> TrainConfig:
    """Small settings of a run in `root`."""
    return TrainConfig(**{**SMALL, **changes, "out": str(root)})


def learnt_by(root: Path, **changes: Any) -> tuple[Learnt, Trainer]:
    """What the learners of a run were given, and its trainer."""
    trainer = Recorder(start_run(config(root, **changes)))
    trainer.train()
    return trainer.learned, trainer


def calls_of(root: Path, name: str) -> list[list[dict[str, Any]]]:
    """The calls of every episode in a transcript."""
    lines = (root / "transcripts" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["calls"] for line in lines]


def grouped(learned: Learnt, key: Callable[[Call], Hashable]) -> list[list[tuple[Call, float]]]:
    """Rows with their advantages, by step and `key`."""
    found: dict[Hashable, list[tuple[Call, float]]] = defaultdict(list)
    for step, _, call, advantage in learned:
        found[step, key(call)].append((call, advantage))
    return list(found.values())


def test_the_half_of_the_groups_with_the_lowest_means_is_left_out(tmp_path, repeated_rows):
    changes = {"algorithm": "at_grpo", "workflow": "eval_opt", "candidates": 3, "steps": 1}
    whole, _ = learnt_by(tmp_path / "whole", **changes)
    half, _ = learnt_by(tmp_path / "half", drop_groups=0.5, **changes)
    nodes = grouped(whole, lambda call: call.node)
    means = [fmean(call.value or 0.0 for call, _ in node) for node in nodes]
    lowest = sorted(range(len(nodes)), key=means.__getitem__)[: len(nodes) // 2]
    kept = [row for number, node in enumerate(nodes) if number not in lowest for row in node]
    assert [(call, advantage) for *_, call, advantage in half] == kept
    assert repeated_rows(tmp_path / "half")[1]["filter/rows"] == 3 * len(lowest) > 0
    assert "filter/rows" not in repeated_rows(tmp_path / "whole")[1]


SOME = ("grpo", "dr_mas", "magrpo", "reinforce_role", "at_grpo", "magrpo_tree")
"""Every kind of sampling, groups within and across roles, and a running mean."""


@pytest.mark.usual(2)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in SOME else pytest.mark.full) for name in ALGORITHMS],
)
def test_it_learns_from_rows_of_its_kind_and_evaluates_without_branching(
    name, tmp_path, repeated_rows
):
    sampling = ALGORITHMS[name].sampling
    changes = {"samples": 6} if sampling == "episodes" else {"candidates": 3, "leaves": 6}
    if sampling == "tree":
        del changes["leaves"]
    steps = 2 if name in SOME else 1  # the loop asks for no algorithm's name
    changes |= {"steps": steps, "checkpoint_every": 2, "eval_problems": 1}
    learned, trainer = learnt_by(tmp_path, algorithm=name, workflow="eval_opt", **changes)
    assert {step for step, *_ in learned} == set(range(1, steps + 1))
    assert all(call.policy == policy for _, policy, call, _ in learned)
    assert any(advantage != 0 for *_, advantage in learned)
    isolated = ALGORITHMS[name].sharing == "isolated"
    policies = {"generator", "evaluator"} if isolated else {"shared"}
    assert set(trainer.run.learners) == {policy for _, policy, _, _ in learned} == policies
    branched = {call.node != "" for _, _, call, _ in learned}
    assert branched == {sampling != "episodes"}
    for calls in calls_of(tmp_path, f"eval-{steps:06}"):
        assert all(call["node"] == "" and call["candidate"] == 0 for call in calls)
    last = repeated_rows(tmp_path)[-1]
    for policy in policies:
        assert last[f"learn/rows/{policy}"] == sum(
            step == steps and named == policy for step, named, *_ in learned
        )
        # Weights at the time of sampling: after the optimizer steps of the step before.
        before = repeated_rows(tmp_path)[steps - 1].get(f"learn/steps/{policy}", 0)
        assert last[f"version/{policy}"] == before
        assert steps == 1 or before > 0


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("dr_mas", lambda call: (call.problem, call.role)),
        ("magrpo", lambda call: (call.problem, call.role, call.turn)),
        ("at_grpo", lambda call: call.node),
        ("magrpo_tree", lambda call: (call.node, call.agent)),
    ],
)
def test_advantages_add_up_to_nothing_in_their_group_and_groups_do_not_mix(name, key, tmp_path):
    branching = ALGORITHMS[name].sampling != "episodes"
    changes = {"candidates": 3} if branching else {"samples": 4}
    learned, _ = learnt_by(tmp_path, algorithm=name, options=("level=1",), **changes)
    groups = grouped(learned, key)
    assert len(groups) >= 2 * 2 * 2, "two steps of two problems, two roles"
    for group in groups:
        assert sum(advantage for _, advantage in group) == pytest.approx(0, abs=1e-5)
    assert any(advantage for group in groups for _, advantage in group)


def test_candidates_are_of_one_prompt_and_state_and_one_is_executed(tmp_path, repeated_rows):
    learned, _ = learnt_by(tmp_path, algorithm="at_grpo", candidates=3, sharing=("isolated",))
    for group in grouped(learned, lambda call: call.node):
        calls = [call for call, _ in group]
        assert [call.candidate for call in calls] == [0, 1, 2]
        assert len({(tuple(call.prompt_ids), call.state_hash, call.agent) for call in calls}) == 1
        taken = [call for call in calls if call.executed]
        assert len(taken) == 1
        assert taken[0].value == max(call.value or 0.0 for call in calls)
    # Three generators, then one aggregator: four decisions an episode, of the executed calls.
    saved = calls_of(tmp_path, "train-000001")
    assert [len(calls) for calls in saved] == [4, 4]
    advantages = {
        (call["node"], call["agent"]): call["advantage"] for calls in saved for call in calls
    }
    assert advantages == {
        (call.node, call.agent): pytest.approx(advantage)
        for step, _, call, advantage in learned
        if step == 1 and call.executed
    }
    assert repeated_rows(tmp_path)[-1]["tree/value_tokens"] == 0


LOWER = {"weights": "bfloat16", "compute": "bfloat16"}
CASES: dict[str, dict[str, Any]] = {
    "refill": {"refill": 2, "samples": 3},
    "curriculum": {"curriculum": ("2:level=2",), "samples": 2},
    "running mean": {"algorithm": "reinforce_role", "samples": 2},
    "coherence": {"coherence": 0.5, "updates": 2, "samples": 2},
    "tree": {"algorithm": "at_grpo", "candidates": 2, "select": "sample"},
    "joint": {"algorithm": "magrpo_tree", "candidates": 2, "leaves": 4},
    "schedule": {
        "schedule": "cosine", "schedule_clock": "update", "sharing": ("isolated",), "warmup": 1,
        "updates": 0, "rows_per_update": 4, "samples": 2, "old_logp": "recomputed",
        "workflow": "eval_opt", "entropy": 0.01,
    },
    "adapters": {"lora_rank": 4, "kl": 0.1, "sharing": ("isolated",), "samples": 2,
                 "workflow": "eval_opt"},
    "frozen": {"sharing": ("generator=solver", "aggregator=judge"), "frozen": ("judge",),
               "role_kl": ("generator=0.1",), "coherence": 0.5, "lora_rank": 4, "samples": 2,
               "workflow": "voting"},
    "int8": {"engine_dtype": "int8", "samples": 2},
    "sampling in bfloat16": {"engine_dtype": "bfloat16", "samples": 2, "entropy": 0.01},
    "bfloat16": {**LOWER, "samples": 2, "entropy": 0.01},
    "adapters on bfloat16": {**LOWER, "lora_rank": 2, "samples": 2, "entropy": 0.01},
    "adafactor": {"optimizer": "adafactor", "samples": 2, "entropy": 0.01},
    "cut off": {"top_p": 0.9, "correction": "renormalize", "samples": 2},
}  # fmt: skip


QUICK = ("running mean", "tree", "joint", "schedule", "int8")


@pytest.mark.usual(1)
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=() if name in QUICK else pytest.mark.full) for name in CASES]
)
def test_a_run_that_crashed_goes_on_with_the_same_numbers_and_weights(
    case, tmp_path, repeated_rows, same_files
):
    steps = 3 if case == "curriculum" else 2  # its second level begins at step 2
    settings = {"workflow": "single", **CASES[case], "steps": steps, "problems": 1, "eval_every": 3}
    killed = copy_after(steps - 1, tmp_path / "whole", tmp_path / "late")
    train(config(tmp_path / "whole", **settings), killed)
    resumed: list[int] = []
    train(config(tmp_path / "late", **settings), lambda row: resumed.append(row["step"]))
    assert resumed == [steps]
    rows = repeated_rows(tmp_path / "whole")
    assert repeated_rows(tmp_path / "late") == rows
    gap = max(row[key] for row in rows for key in row if key.startswith("learn/logp_gap_max"))
    assert (gap > 1e-4) == bool({"weights", "engine_dtype"} & settings.keys()), "of rough sampling"
    same_files(tmp_path / "whole", tmp_path / "late", steps)
