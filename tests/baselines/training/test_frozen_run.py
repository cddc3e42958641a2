"""A run in which one role's policy is frozen: it plays, and nothing else happens to it."""

import copy
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.run.manifest import checkpoints
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train


def config(root: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "steps": 2, "problems": 2, "samples": 4, "eval_problems": 2, "checkpoint_every": 1,
        "threads": 1, "sharing": ("generator=solver", "aggregator=judge"), "frozen": ("judge",),
        "role_kl": ("generator=0.1",), "coherence": 0.5, "out": str(root), "lr": 5e-3,
    }  # fmt: skip
    return TrainConfig(**{**settings, **changes})


@pytest.mark.parametrize("rank", [0, pytest.param(4, marks=pytest.mark.full)])
def test_it_gets_no_learner_and_no_checkpoint(rank, tmp_path, repeated_rows):
    train(config(tmp_path, lora_rank=rank))
    last = repeated_rows(tmp_path)[-1]
    assert last["learn/rows/solver"] > 0
    assert last["learn/reference_kl/solver"] > 0
    assert last["version/solver"] >= 1
    assert not [name for name in last if name.endswith("/judge") and name.startswith("learn/")]
    info = checkpoints(tmp_path / "checkpoints")[-1]
    assert (info.policies, dict(info.frozen)) == (("solver",), {"judge": "pocket:math"})
    assert [path.name for path in (info.path / "policies").iterdir()] == ["solver"]


def test_its_weights_never_change_while_the_others_move(tmp_path):
    trainer = Trainer(start_run(config(tmp_path)))
    models = {name: one.weights.model for name, one in trainer.run.state.trained.items()}
    before = {name: copy.deepcopy(model.state_dict()) for name, model in models.items()}
    trainer.train()
    moved = {
        name: any(not value.equal(before[name][key]) for key, value in model.state_dict().items())
        for name, model in models.items()
    }
    assert moved == {"solver": True, "judge": False}
