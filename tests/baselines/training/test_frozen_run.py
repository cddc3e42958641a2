"""A run in which one role's policy is frozen: it plays, and nothing else happens to it."""

from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.run.manifest import checkpoints
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.trainer import Trainer, train
from tests.baselines.rows import copy_after


def config(root: Path, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "steps": 2, "problems": 2, "samples": 4, "eval_problems": 2, "checkpoint_every": 1,
        "threads": 1, "sharing": ("generator=solver", "aggregator=judge"), "frozen": ("judge",),
        "role_kl": ("generator=0.1",), "coherence": 0.5, "out": str(root), "lr": 5e-3,
    }  # fmt: skip
    return TrainConfig(**{**settings, **changes})


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 4])
def test_it_gets_no_learner_and_no_checkpoint_and_a_run_resumes_exactly(
    rank, tmp_path, repeated_rows
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config(whole, lora_rank=rank), copy_after(1, whole, parts))
    train(config(parts, lora_rank=rank))
    last = repeated_rows(whole)[-1]
    assert repeated_rows(parts)[2:] == repeated_rows(whole)[2:]
    assert last["learn/rows/solver"] > 0
    assert last["learn/reference_kl/solver"] > 0
    assert last["version/solver"] >= 1
    assert not [name for name in last if name.endswith("/judge") and name.startswith("learn/")]
    info = checkpoints(whole / "checkpoints")[-1]
    assert (info.policies, dict(info.frozen)) == (("solver",), {"judge": str(pocket_path("math"))})
    assert [path.name for path in (info.path / "policies").iterdir()] == ["solver"]


def test_its_weights_never_change_while_the_others_move(tmp_path):
    trainer = Trainer(config(tmp_path))
    before = {
        name: {key: value.clone() for key, value in one.weights.model.state_dict().items()}
        for name, one in trainer.state.trained.items()
    }
    trainer.train()
    moved = {
        name: any(
            not value.equal(before[name][key])
            for key, value in one.weights.model.state_dict().items()
        )
        for name, one in trainer.state.trained.items()
    }
    assert moved == {"solver": True, "judge": False}
