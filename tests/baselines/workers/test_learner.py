"""Learners that a learner group makes from the settings: the learners of its own policies."""

from typing import Any

import pytest
import torch

from flowzoo.baselines.engines import hf
from flowzoo.baselines.engines.hf import load_policies, policy_models
from flowzoo.baselines.learner.schedule import lr_at
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.factories import make_learners
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.workers.learner import open_learners

APART: dict[str, Any] = {
    "workflow": "voting", "model": "pocket:xs", "sharing": ("isolated",), "problems": 2,
    "samples": 4, "shard_jobs": 2, "backend": "ray", "ray_address": "local", "rollout_workers": 2,
    "learner_workers": ("generator=1", "aggregator=1"), "threads": 1, "schedule": "linear",
    "schedule_clock": "update", "device": "cpu",
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 4, "models": ("generator=pocket",)}])
def test_data_parallel_have_their_own_learners_as_one_process_has_them(changes, monkeypatch):
    config = TrainConfig(**APART | changes)
    plan = resolve(config)
    loaded = load_policies(config, policy_models(config, plan.models, plan.workflow.task.name))
    whole = make_learners(loaded, plan.learners)
    models: list[str] = []
    usual = hf.load_model

    def load(path, *how):
        models.append(path)
        return usual(path, *how)

    monkeypatch.setattr(hf, "load_model", load)
    learner_groups = {
        group.policies: open_learners(config, {}, group.policies) for group in plan.learner_groups
    }
    assert len(learner_groups) == len(models) == 2, "a model each"
    apart = {name: one for learners in learner_groups.values() for name, one in learners.items()}
    assert [tuple(learners) for learners in learner_groups.values()] == list(learner_groups)
    for name, learner in whole.items():
        for mine, theirs in zip(learner.parameters, apart[name].parameters, strict=True):
            assert torch.equal(mine, theirs)
    for count in range(6):  # updates of both, in turns
        name = ("aggregator", "generator")[count % 2]
        rate = lr_at(count, plan.learners[name])
        for learner in (whole[name], apart[name]):
            assert learner.update([], [])["learn/lr"] == rate
