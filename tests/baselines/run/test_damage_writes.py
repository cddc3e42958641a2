"""A disk that fills up at any file of a run, and death at any moment of mending a damaged one."""

import os
import shutil
from pathlib import Path

import pytest
import torch

from flowzoo.baselines.learner.saved import save_tensors
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.commands.shared import quiet_transformers
from flowzoo.errors import SaveError

pytestmark = pytest.mark.xdist_group("damage")  # they share runs


FULL = [
    ("killed", 100, "aside/1/metrics.jsonl could"),  # the row that is done again
    pytest.param("killed", 3000, "run/metrics.jsonl could", marks=pytest.mark.full),  # the others
    pytest.param("killed", 8000, "transcripts/train-000003.jsonl could", marks=pytest.mark.full),
    ("killed", 9800, "run/metrics.jsonl could"),  # in the middle of a new row
    pytest.param("killed", 40_000, "the checkpoint of step 4 could", marks=pytest.mark.full),
    pytest.param("killed", 1_500_000, "the checkpoint of step 4 could", marks=pytest.mark.full),
    pytest.param("finished", 100, "run.json could", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("state", "size", "file"), FULL)
def test_a_disk_that_is_full(
    state, size, file, tmp_path, small_run, small_runs, repeated_rows, what_was_measured,
    largest_file,
):  # fmt: skip
    """The run stops with one line that names the file, and goes on when there is room again."""
    root = tmp_path / "run"
    shutil.copytree(small_runs / state, root)
    measured = what_was_measured(root)
    quiet_transformers()  # its bars would go to a file, which may not grow either
    with largest_file(size), pytest.raises(SaveError) as stopped:
        train(small_run(root))
    said = str(stopped.value)
    assert file in said
    assert "\n" not in said
    assert "inline_container" not in said, "of torch"
    measured |= what_was_measured(root)
    train(small_run(root))
    assert measured.lost_in(root) == 0
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")


def test_torch_is_made_to_say_why_a_file_could_not_be_written(tmp_path, largest_file):
    value = {"steps": torch.zeros(50_000), "inner": {"steps": 1}}
    with largest_file(1000), pytest.raises(OSError, match="File too large") as stopped:
        save_tensors(value, tmp_path / "learner.pt")
    assert isinstance(stopped.value.__cause__, RuntimeError), "what torch made of it"


def test_equal_states_have_equal_bytes(tmp_path):
    """As a learner's after a resumption, whose texts are other objects than the code's."""
    paths = [tmp_path / name for name in ("a.pt", "b.pt")]
    for path, name in zip(paths, ("steps", "".join(("st", "eps"))), strict=True):
        save_tensors({"steps": 1, "inner": [{name: torch.ones(3)}, (name,)]}, path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert torch.load(paths[0], weights_only=True)["inner"][1] == ("steps",)


def test_death_before_the_first_checkpoint(
    tmp_path, small_run, small_runs, repeated_rows, what_was_measured
):
    """The one moment at which a run with metrics begins anew by itself, keeping them."""
    root = tmp_path / "run"
    shutil.copytree(small_runs / "killed", root)
    (root / "checkpoints" / "step-00000000").rename(root / "checkpoints" / ".partial-step-00000000")
    shutil.rmtree(root / "checkpoints" / "step-00000002")
    for path in root.glob("transcripts/*[1-9].jsonl"):
        path.unlink()
    metrics = root / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().splitlines(keepends=True)[0])
    measured = what_was_measured(root)
    train(small_run(root))
    assert measured.lost_in(root) == 0
    assert (root / "aside" / "1" / "transcripts" / "eval-000000.jsonl").is_file()
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")


class Killed(BaseException):
    """Stands for a process that dies."""


def damage(root: Path) -> None:
    """A newest checkpoint, metrics, summary and record, none of which is whole."""
    os.truncate(root / "checkpoints/step-00000004/random.pt", 10)
    for name in ("metrics.jsonl", "summary.json", "run.json"):
        os.truncate(root / name, 700)


@pytest.mark.full
def test_death_at_any_moment_of_mending(
    tmp_path, monkeypatch, small_run, small_runs, repeated_rows, what_was_measured
):
    """One process after the other dies, each a call further, until one comes through."""
    root = tmp_path / "run"
    shutil.copytree(small_runs / "finished", root)
    damage(root)
    measured = what_was_measured(root)
    left = 0

    def deadly(function):
        def wrapped(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(*args, **kwargs)

        return wrapped

    deaths = 0
    for limit in range(40):
        left = limit
        with monkeypatch.context() as patch:
            for name in ("fsync", "rename", "replace", "mkdir"):
                patch.setattr(os, name, deadly(getattr(os, name)))
            try:
                trainer = Trainer(start_run(small_run(root)))
            except Killed:
                deaths += 1
                assert measured.lost_in(root) == 0
                continue
        break
    else:
        pytest.fail("no process came through")
    assert deaths >= 5
    trainer.train()
    assert measured.lost_in(root) == 0
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
    assert [path.name for path in root.glob("checkpoints/torn-*")] == ["torn-step-00000004"]


@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    ["checkpoints/torn-step-00000004", "aside/1/transcripts/train-000003.jsonl", "metrics.jsonl",
     "run.json"],
)  # fmt: skip
def test_kill_9_while_a_run_is_mended(
    target, tmp_path, warm, kill_before, small_runs, small_words, repeated_rows, what_was_measured
):
    root = tmp_path / "run"
    shutil.copytree(small_runs / "finished", root)
    os.truncate(root / "checkpoints/step-00000004/random.pt", 10)
    measured = what_was_measured(root)
    command = ["flowzoo.cli", *small_words(root)]
    kill_before(command, root / target)
    assert measured.lost_in(root) == 0
    done = warm(command).finish()
    assert done.returncode == 0, done.stderr
    assert measured.lost_in(root) == 0
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
