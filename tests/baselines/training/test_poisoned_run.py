"""A number that is not finite ends a run: named, saved, and without a step taken."""

import json
import math
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flowzoo.agents import Request
from flowzoo.baselines.backends.ray.learners import run_concurrently
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.run import directory
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training import build
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.factories import open_engines
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.cli import main
from flowzoo.files import free_path


class Poisoned:
    """A policy whose second reply has a log-prob that is not a number."""

    batching = "static"

    def __init__(self, inner: Any) -> None:
        self.inner, self.name, self.asked = inner, inner.name, 0

    async def generate(self, requests: Sequence[Request]) -> list[Any]:
        replies = await self.inner.generate(requests)
        for place in range(len(replies)):
            self.asked += 1
            if self.asked == 2:
                logps = list(replies[place].logps)
                logps[1] = math.nan
                replies[place] = replace(replies[place], logps=tuple(logps))
        return replies

    async def close(self) -> None:
        await self.inner.close()


def make(root: Path) -> Trainer:
    return Trainer(start_run(
        TrainConfig(
            steps=2, problems=2, samples=4, eval_problems=2, threads=1, sharing=("isolated",),
            out=str(root),
        )
    ))  # fmt: skip


@pytest.mark.full
def test_a_poisoned_row_stops_the_run_and_is_saved(tmp_path):
    trainer = make(tmp_path)
    trainer.run.engines.train_policies = dict(trainer.run.engines.train_policies)
    trainer.run.engines.train_policies["generator"] = Poisoned(
        trainer.run.engines.train_policies["generator"]
    )
    before = {k: v.clone() for k, v in trainer.run.learners["generator"].model.state_dict().items()}
    with pytest.raises(NonFiniteError, match="policy 'generator'") as caught:
        trainer.train()
    said = str(caught.value)
    saved = tmp_path / "nonfinite-000001.jsonl"
    (row,) = [json.loads(line) for line in saved.read_text().splitlines()]
    assert math.isnan(row["logps"][1])
    where = f"{row['problem']}/{row['episode']}/{row['agent']}/{row['turn']}"
    assert f"role 'generator', row {where}" in said
    assert "recorded nan as the log-prob of output token 1" in said
    assert any(str(saved) in note for note in caught.value.__notes__)
    after = trainer.run.learners["generator"].model.state_dict()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [0]
    again = make(tmp_path)
    assert again.run.state.step == 0, "the checkpoint before it is good"
    again.train()
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [0, 1, 2]


def test_policies_that_fail_at_the_same_time_each_keep_their_rows(tmp_path, monkeypatch):
    """Learners in threads, as those of learner groups are; both come to save at once if they
    can."""
    trainer, meeting = make(tmp_path), threading.Barrier(2)

    def spoil():
        for learner in trainer.run.learners.values():
            with torch.no_grad():
                learner.parameters[-1].fill_(math.nan)

    def late(path):
        found = free_path(path)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(1)
        return found

    def together(works):
        return run_concurrently([{name: work} for name, work in works.items()], lambda: None)

    trainer.run.engines.before_learning = spoil
    trainer.run.backend.together = together
    monkeypatch.setattr(directory, "free_path", late)
    with pytest.raises(NonFiniteError, match="the loss of") as caught:
        trainer.train()
    rows = {
        path: {json.loads(line)["role"] for line in path.read_text().splitlines()}
        for path in tmp_path.glob("nonfinite-000001.jsonl*")
    }
    assert sorted(rows.values(), key=str) == [{"aggregator"}, {"generator"}]
    (note,) = caught.value.__notes__
    (mine,) = [roles for path, roles in rows.items() if note.endswith(f"saved in {path}")]
    assert f"policy {mine.pop()}:" in note


def test_the_command_line_says_it_in_one_line(tmp_path, capsys, monkeypatch):
    def poisoned(*args):
        engines: Any = open_engines(*args)
        engines.train_policies = {
            name: Poisoned(player) for name, player in engines.train_policies.items()
        }
        return engines

    monkeypatch.setattr(build, "open_engines", poisoned)
    words = ["train", "voting", "--steps", "1", "--problems", "2", "--samples", "2",
             "--eval-problems", "2", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "policy 'shared' is not finite; the first is role 'generator'" in said
    assert said.endswith(f"the rows are saved in {tmp_path / 'nonfinite-000001.jsonl'}")


def test_weights_that_are_not_numbers_stop_the_run(tmp_path):
    """The learner's, between sampling and learning: the loss of the first rows is to blame."""
    trainer = make(tmp_path)

    def spoil():
        with torch.no_grad():
            trainer.run.learners["generator"].parameters[-1].fill_(math.nan)

    trainer.run.engines.before_learning = spoil
    with pytest.raises(NonFiniteError, match=r"the loss of .* rows of policy 'generator'"):
        trainer.train()
    rows = (tmp_path / "nonfinite-000001.jsonl").read_text().splitlines()
    assert {json.loads(line)["role"] for line in rows} == {"generator"}
