"""A run directory that version 0.1.0 wrote before its modules moved, and what became of it there.

`old_run` was made by the commit before the move (b0eb734), with one command: `run` was killed in
its last step, `expected.jsonl` holds the metrics of the same command that was left alone. The model
is the pocket model `math-xs` of that commit, in float16.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.run.reading import present_name, read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.errors import DataError

HERE = Path(__file__).parent / "old_run"
TIMES = ("time/", "perf/")


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(HERE, tmp_path / "old", dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path / "old")  # its settings name the model by a relative path
    (tmp_path / "old" / "run").rename("killed")
    return tmp_path / "old" / "killed"


def test_an_old_run_resumes_with_the_numbers_it_would_have_had(old_run: Path) -> None:
    trainer = Trainer(settings_of(old_run))
    assert trainer.state.step == 2
    trainer.train()
    found, expected = rows(old_run / "metrics.jsonl"), rows(HERE / "expected.jsonl")
    assert [row["step"] for row in found] == [0, 1, 2, 3, 4]
    for mine, theirs in zip(found, expected, strict=True):
        known = {present_name(name) for name in mine}
        assert {present_name(name) for name in theirs} <= known
        for old_name, value in theirs.items():
            # A step that was done since has the present name, one before it the old one.
            name = old_name if old_name in mine else present_name(old_name)
            if not name.startswith(TIMES):
                # Another CPU rounds otherwise; on one of the same kind they are equal.
                assert mine[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name


def settings_of(run: Path) -> TrainConfig:
    record = json.loads((run / "run.json").read_text(encoding="utf-8"))
    kinds = {name: type(value) for name, value in vars(TrainConfig()).items()}
    settings: dict[str, Any] = {
        name: tuple(value) if kinds[name] is tuple else value
        for name, value in record["settings"].items()
    }
    return TrainConfig(**settings)


@pytest.mark.full
def test_metrics_that_an_old_checkpoint_cannot_mend_stop_the_run(old_run: Path) -> None:
    """Its format has sizes alone, and no copy of the metrics."""
    path = old_run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for damaged, said in (
        (lines[:1] + lines[2:], "line 2 is of step 2 and not of step 1"),
        (lines[:2], "the rows of steps 2 to 2 are missing"),
        ([b"nothing", *lines[1:]], "line 1 is not a row of metrics"),
    ):
        path.write_bytes(b"".join(damaged))
        with pytest.raises(DataError, match=f"{said}.*with --restart, which keeps this run"):
            Trainer(settings_of(old_run))
        assert path.read_bytes() == b"".join(damaged)
    path.write_bytes(b"".join(lines))
    learner = next(old_run.glob("checkpoints/step-00000002/policies/*/learner.pt"))
    learner.write_bytes(bytes(learner.stat().st_size))
    with pytest.raises(DataError, match=r"without an intact checkpoint .*step-00000002 is da"):
        Trainer(settings_of(old_run))


def test_an_old_run_can_be_read(old_run: Path) -> None:
    run = read_run(old_run, "old")
    assert run.settings["workflow"] == "voting"
    assert run.settings["decay"] == "all"  # from before there was this setting
    assert run.settings["optimizer"] == "adamw"
    assert [row["step"] for row in run.evaluations] == [0, 2, 4]
