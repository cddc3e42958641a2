"""Checkpoints on a real file system that is full."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowzoo.baselines.run import checkpoint

CHILD = """
import sys
from pathlib import Path
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from flowzoo.baselines.run.checkpoint import CheckpointRetention, load, save
from flowzoo.baselines.run.manifest import checkpoints
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
        print(room, "refused", checkpoints(root)[-1].step, len(list(root.iterdir())))
    else:
        print(room, "saved", checkpoints(root)[-1].step)
        break
    ballast.unlink()
ballast.unlink(missing_ok=True)
if checkpoints(root)[-1].step == 1:
    save(root, 2, {"a": learner}, keep=CheckpointRetention(last=1))
load(checkpoints(root)[-1].path, {"a": learner})
print("whole", checkpoints(root)[-1].step)
"""


def may_mount(folder: Path) -> bool:
    """This process may make a file system of its own."""
    if not shutil.which("unshare"):
        return False
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.full
def test_a_full_disk(tmp_path):
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
