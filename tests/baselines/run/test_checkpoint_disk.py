"""A disk that fills up, or a size limit, in the middle of a checkpoint."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs flowzoo[train]")

import torch

from flowzoo.agents.hf.policy import load_model
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.run import checkpoint
from flowzoo.baselines.run.checkpoint import load, save
from flowzoo.baselines.run.manifest import checkpoints, latest
from flowzoo.baselines.run.retention import CheckpointRetention
from flowzoo.errors import DataError, SaveError, UsageError


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


# The weights take 16 kB and the optimiser's moments twice that.
@pytest.mark.parametrize("limit", [100, 4096, 20_000])
def test_a_failed_write_leaves_the_old_checkpoint_and_nothing_else(
    limit: int,
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    role_rows: Callable[..., Any],
    largest_file: Callable[[int], Any],
) -> None:
    learner = Learner(tiny_model(), LearnerConfig(lr=1e-2))
    learner.update(role_rows(), [1.0] * 9)
    save(tmp_path, 1, {"a": learner}, keep=CheckpointRetention(last=1))
    weights, before = copy.deepcopy(learner.model.state_dict()), files(tmp_path)
    learner.update(role_rows(), [-1.0] * 9)
    with largest_file(limit), pytest.raises(SaveError, match="checkpoint of step 2 could not be"):
        save(tmp_path, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    assert files(tmp_path) == before
    newest = latest(tmp_path)
    assert newest is not None
    other = Learner(tiny_model(5), LearnerConfig(lr=1e-2))
    load(newest.path, {"a": other})
    assert all(torch.equal(weights[name], w) for name, w in other.model.state_dict().items())
    save(tmp_path, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    assert [info.step for info in checkpoints(tmp_path)] == [2]


CHILD = """
import sys
from pathlib import Path
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from flowzoo.baselines.run.checkpoint import (load, save)
from flowzoo.baselines.run.retention import CheckpointRetention
from flowzoo.baselines.run.manifest import latest
from flowzoo.errors import SaveError
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.config import LearnerConfig

torch.set_num_threads(1)
config = Qwen3Config(
    vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, intermediate_size=64,
)
learner = Learner(Qwen3ForCausalLM(config), LearnerConfig())
root = Path(sys.argv[1])
save(root, 1, {"a": learner}, keep=CheckpointRetention(last=1))
with torch.no_grad():
    for parameter in learner.parameters:
        parameter.fill_(2.0)
ballast = root / "ballast"
for room in (0, 4, 16, 64, 128, 160):  # KiB left
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
        file.truncate(max(0, file.tell() // 4096 * 4096 - 1024 * room))
    try:
        save(root, 2, {"a": learner}, keep=CheckpointRetention(last=1))
    except SaveError as error:
        print(room, "refused", latest(root).step, len(list(root.iterdir())))
    else:
        print(room, "saved", latest(root).step)
        break
    ballast.unlink()
ballast.unlink(missing_ok=True)
if latest(root).step == 1:
    save(root, 2, {"a": learner}, keep=CheckpointRetention(last=1))
load(latest(root).path, {"a": learner})
print("whole", latest(root).step)
"""


def may_mount(folder: Path) -> bool:
    """This process may make a file system of its own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.full
def test_a_full_disk(tmp_path: Path) -> None:
    """On a real file system of 700 KiB, filled up but for less and more room than is needed."""
    if not may_mount(tmp_path):
        pytest.skip("this user may not mount a small file system")
    script = 'mount -t tmpfs -o size=700k tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, "sh", str(tmp_path), sys.executable, CHILD],
        cwd=Path(checkpoint.__file__).parents[2], capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *rooms, whole = [line.split() for line in done.stdout.splitlines()]
    assert whole == ["whole", "2"]
    refused = [line for line in rooms if line[1] == "refused"]
    assert len(refused) >= 4
    assert all(line[2:] == ["1", "2"] for line in refused), "the old one and the ballast"


def test_damaged_weights_play_for_nobody(tmp_path: Path, tiny_model: Callable[..., Any]) -> None:
    saved = save(tmp_path, 1, {"a": Learner(tiny_model(), LearnerConfig())}) / "policies" / "a"
    weights = saved / "model.safetensors"
    intact = weights.read_bytes()
    load_model(str(saved), "float32")
    for damaged in (intact[:-1] + bytes([intact[-1] ^ 1]), intact[:9], b""):
        weights.write_bytes(damaged)
        with pytest.raises(DataError, match=r"is damaged: policies/a/model.safetensors has"):
            load_model(str(saved), "float32")
    shutil.copytree(saved, tmp_path / "copy")  # where no manifest knows it
    with pytest.raises(UsageError, match="cannot load a model"):
        load_model(str(tmp_path / "copy"), "float32")


def test_milestones_stay(tmp_path: Path, tiny_model: Callable[..., Any]) -> None:
    learner = Learner(tiny_model(), LearnerConfig())
    for step in range(7):
        save(tmp_path, step, {"a": learner}, keep=CheckpointRetention(last=1, best=False, every=3))
    assert [info.step for info in checkpoints(tmp_path)] == [0, 3, 6]
    with pytest.raises(UsageError, match="`every` must be at least 0"):
        CheckpointRetention(every=-1)


def test_frozen_policies_are_named_and_not_saved(
    tmp_path: Path, tiny_model: Callable[..., Any]
) -> None:
    learner = Learner(tiny_model(), LearnerConfig())
    path = save(tmp_path, 1, {"a": learner}, frozen={"judge": "some/model"})
    info = load(path, {"a": learner})
    assert (info.policies, dict(info.frozen)) == (("a",), {"judge": "some/model"})
    assert not (path / "policies" / "judge").exists()
    with pytest.raises(UsageError, match="weights are those of 'some/model'"):
        info.policy_path("judge")
