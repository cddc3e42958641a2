"""Batches sampled one step ahead: the same ones, kept in checkpoints, dropped with their engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.baselines import ahead
from flowzoo.baselines.plan import resolve
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.trainer import Trainer
from flowzoo.errors import UsageError

SMALL: dict[str, Any] = {
    "steps": 3, "problems": 2, "samples": 3, "eval_problems": 1, "threads": 1, "max_tokens": 12,
    "workflow": "single",
}  # fmt: skip
TREE: dict[str, Any] = {"algorithm": "at_grpo", "workflow": "eval_opt", "candidates": 2,
                        "samples": 1}  # fmt: skip


def trainer(root: Path, **changes: Any) -> Trainer:
    return Trainer(TrainConfig(**{**SMALL, **changes, "out": str(root)}))


def plain(sampled: ahead.SampledStep) -> dict[str, Any]:
    """A batch as values, without the time that it took."""
    found = json.loads(ahead.to_text(sampled))
    del found["seconds"]
    return found


def test_a_batch_that_is_sampled_ahead_is_the_one_that_would_be_sampled_later(
    tmp_path: Path,
) -> None:
    early, late = trainer(tmp_path / "a"), trainer(tmp_path / "b")
    early.batches.start(1)
    early.batches.wait()
    assert early.batches.ready is not None
    assert early.stream.cursor == 2
    batch = early.batches.take(1)
    assert early.batches.ready is None
    assert plain(batch) == plain(late.batches.take(1))
    assert batch.versions == {"shared": 0}
    early.close()
    late.close()


@pytest.mark.parametrize("changes", [{}, TREE])
def test_a_batch_comes_back_from_a_checkpoint_as_it_was(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    run = trainer(tmp_path, **changes)
    sampled = run.batches.take(1)
    run.close()
    (tmp_path / ahead.FILE).write_text(ahead.to_text(sampled), encoding="utf-8")
    found = ahead.read(tmp_path)
    assert found is not None
    assert found.gathered.sampled.rows == sampled.gathered.sampled.rows
    assert found.gathered.kept == sampled.gathered.kept
    assert found[2:] == sampled[2:]
    assert plain(found) == plain(sampled)
    records = found.gathered.sampled.records
    assert [record.score for record in records] == [
        record.score for record in sampled.gathered.sampled.records
    ]
    own = {id(call) for record in records for call in record.calls}
    shared = sum(id(row) in own for row in found.gathered.sampled.rows)
    assert 0 < shared <= len(found.gathered.sampled.rows)
    assert (shared == len(found.gathered.sampled.rows)) == (not changes)
    assert ahead.read(tmp_path / "checkpoints") is None


def test_a_batch_whose_engine_dies_is_sampled_when_its_step_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(tmp_path / "a")
    told: list[BaseException] = []
    with monkeypatch.context() as patch:

        def die() -> None:
            raise EngineDeadError("it died")

        patch.setattr(run.engines, "before_rollout", die)
        patch.setattr(run.engines, "recover", told.append)
        run.batches.start(1)
        run.batches.wait()
    assert [str(error) for error in told] == ["it died"]
    assert run.batches.ready is None
    assert run.stream.cursor == 0
    calm = trainer(tmp_path / "b")
    assert plain(run.batches.take(1)) == plain(calm.batches.take(1))
    run.close()
    calm.close()


def test_what_sampling_raises_is_raised_where_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(tmp_path)

    def fail() -> None:
        raise UsageError("a grader is missing")

    monkeypatch.setattr(run.engines, "before_rollout", fail)
    run.batches.start(1)
    with pytest.raises(UsageError, match="a grader is missing"):
        run.batches.wait()
    run.close()


SPLIT: dict[str, Any] = {"max_staleness": 1, "engine": "vllm", "placement": "split"}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"max_staleness": 1}, r"set engine=vllm and placement=split \(got transformers\)"),
        ({"max_staleness": 1, "engine": "vllm"}, r"\(got vllm, colocated\)"),
        ({**SPLIT, "engine_sleep": True}, "leave out `engine_sleep`"),
        ({**SPLIT, "algorithm": "rloo"}, "rloo has no ratio to the policy that sampled"),
        ({"max_staleness": 2}, "0, or 1 for one batch ahead, got 2"),
    ],
)
def test_settings_that_cannot_be_meant(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve(TrainConfig(**changes))


def test_what_corrects_for_older_weights_is_taken() -> None:
    resolve(TrainConfig(**SPLIT))
    resolve(TrainConfig(**SPLIT, algorithm="rloo", old_logp="recomputed"))
