"""Rollouts that overlap learning: which weights sample what, and runs that repeat and resume."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from tests.baselines.rows import copy_after

pytestmark = [
    pytest.mark.vllm, pytest.mark.full, pytest.mark.xdist_group("overlap"),
    pytest.mark.usefixtures("forked_engines"),
]  # fmt: skip

SMALL: dict[str, Any] = {
    "engine": "vllm", "placement": "split", "max_staleness": 1, "steps": 4, "problems": 2,
    "samples": 4, "eval_problems": 2, "eval_every": 2, "checkpoint_every": 2, "threads": 1,
    "max_batch": 64, "engine_memory": 0.06, "transcripts_every": 1, "lr": 1e-3, "keep_last": 9,
}  # fmt: skip


def config(root: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL, **changes, "out": str(root)})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, forked_engines: None) -> Path:
    """A finished run that sampled ahead, and `parts`: what it was on the disk at step 2."""
    root = tmp_path_factory.mktemp("overlap") / "whole"
    train(config(root), copy_after(2, root, root.parent / "parts"))
    return root


def test_every_batch_is_sampled_by_the_weights_of_one_step_before(whole, repeated_rows):
    kept = repeated_rows(whole)[1:]
    steps = [row["learn/steps/shared"] for row in kept]
    assert steps == [1.0] * 4  # else the next line says little
    assert [row["version/shared"] for row in kept] == [0, 0, 1, 2]
    assert [row["staleness/shared"] for row in kept] == [0, 1, 1, 1]
    for row in kept:
        file = whole / "transcripts" / f"train-{row['step']:06d}.jsonl"
        calls = [call for line in file.read_text().splitlines()
                 for call in json.loads(line)["calls"]]  # fmt: skip
        assert {call["version"] for call in calls} == {row["version/shared"]}
        assert row["sync/gap_max/shared"] < 1e-3  # the engine has the newest weights afterwards
    # Recorded log-probs are the sampler's: with the weights of now in the first step only.
    assert kept[0]["learn/logp_gap_max/shared"] < 1e-3
    assert all(row["learn/logp_gap_max/shared"] > 1e-3 for row in kept[1:])


def test_a_resumed_run_trains_on_the_rows_that_were_sampled_ahead(whole, repeated_rows):
    parts = whole.parent / "parts"
    assert (parts / "checkpoints" / "step-00000002" / "ahead.json").is_file()
    assert not (whole / "checkpoints" / "step-00000004" / "ahead.json").exists()
    train(config(parts))
    assert repeated_rows(parts) == repeated_rows(whole)


def test_an_engine_that_dies_beside_the_learner_is_started_again(tmp_path, caplog):
    trainer = Trainer(start_run(config(tmp_path, lora_rank=4)))
    start = trainer.run.batches.start

    def start_dead(step):
        for engine in trainer.run.engines.by_policy.values():
            engine.backend.close()
        start(step)

    trainer.run.batches.start = start_dead
    first = trainer.iterate(1)
    trainer.run.batches.start = start
    second = trainer.iterate(2)
    trainer.close()
    assert [r for r in caplog.records if "started again" in r.getMessage()]
    assert (first["staleness/shared"], second["staleness/shared"]) == (0, 0)
    assert second["version/shared"] == first["learn/steps/shared"] == 1
    assert second["learn/logp_gap_max/shared"] < 1e-3


@pytest.mark.parametrize("changes", [{}, {"lora_rank": 4, "sharing": ("isolated",)}])
def test_weights_change_between_the_turns_of_episodes(changes, tmp_path, repeated_rows):
    root, parts = tmp_path / "whole", tmp_path / "parts"
    settings = {"max_staleness": 2, "deterministic": False, "steps": 5, "workflow": "eval_opt"}
    settings |= changes | {"problems": 4, "max_tokens": 32, "eval_every": 5}
    train(config(root, **settings), copy_after(2, root, parts))
    train(config(parts, **settings))
    for run in (root, parts):
        rows = repeated_rows(run)[1:]
        policies = [key.partition("/")[2] for key in rows[0] if key.startswith("version/")]
        mixed = set[str]()
        for row, policy in itertools.product(rows, policies):
            file = run / "transcripts" / f"train-{row['step']:06d}.jsonl"
            calls = [call for line in file.read_text().splitlines()
                     for call in json.loads(line)["calls"] if call["policy"] == policy]  # fmt: skip
            ages = [row[f"version/{policy}"] + row[f"staleness/{policy}"] - call["version"]
                    for call in calls]  # fmt: skip
            assert 0 <= min(ages) <= max(ages) == row[f"staleness/{policy}"] <= 2
            assert row[f"staleness_mean/{policy}"] == pytest.approx(sum(ages) / len(ages))
            assert row[f"sync/gap_max/{policy}"] < 1e-3
            mixed |= {policy} if len(set(ages)) > 1 else set()
        assert mixed, "no batch had weights of two versions"
