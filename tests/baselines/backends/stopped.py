"""A run that gets a signal and goes on: `python stopped.py FOLDER SIGNAL MOMENT WORDS...`.

WORDS choose the backend. At the MOMENT `sampled` a reward sleeps while replies of step 3 are
played, so that the step has to be dropped; at `quiet` no step takes long. It prints, as JSON, what
the stopped command said, and how the resumed run differs from one that nothing happened to.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flowzoo.baselines.run.directory import VOLATILE

REWARD = """
import os, pathlib, time

def reward(episode):
    flag = pathlib.Path(os.environ.get("SLOW", "no such file"))
    if flag.exists() and os.environ.get("RANK", "0") == "0":
        flag.with_suffix(".reached").touch()
        time.sleep(900)
    return sum(map(ord, episode.answer or "x")) % 7 / 7
"""
SETTINGS = {
    "model": "pocket:xs", "steps": 4, "problems": 2, "samples": 4, "max-tokens": 40,
    "truncated": "train", "eval-problems": 2, "eval-every": 2, "checkpoint-every": 4,
    "threads": 1, "probe-every": 0, "shard-jobs": 4, "reward": "reward.py:reward",
    "stop-within": 3,
}  # fmt: skip


def command(root: Path, words: list[str]) -> list[str]:
    """The command that trains in `root`."""
    given = [f"--{name}={value}" for name, value in SETTINGS.items()]
    return [sys.executable, "-m", "flowzoo.cli", "train", "single", *given, f"--out={root}", *words]


def rows_of(root: Path) -> list[dict[str, Any]]:
    """Metrics that do not depend on the machine's speed."""
    file = root / "metrics.jsonl"
    rows = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [{key: row[key] for key in row if not key.startswith(VOLATILE)} for row in rows]


def weights_of(root: Path) -> dict[str, str]:
    """Digests of the last weights."""
    files = (root / "checkpoints/step-00000004/policies").rglob("*.safetensors")
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def stop(folder: Path, number: int, moment: str, words: list[str]) -> tuple[int, str]:
    """Start the run, send the signal, and return its status and what it said."""
    flag, metrics = folder / "slow", folder / "stopped/metrics.jsonl"
    run = subprocess.Popen(
        command(folder / "stopped", words), cwd=folder, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    while run.poll() is None:
        if metrics.exists() and metrics.read_text().count("\n") >= 3:
            if moment == "quiet":
                break
            flag.touch()
        if flag.with_suffix(".reached").exists():
            break
        time.sleep(0.01)
    run.send_signal(number)
    said = run.communicate()[1]
    flag.unlink(missing_ok=True)
    return run.returncode, said


def main(folder: Path, name: str, moment: str, words: list[str]) -> dict[str, Any]:
    """See the module."""
    quiet = [] if any("ray" in word for word in words) else words  # Ray has the numbers of local
    (folder / "reward.py").write_text(REWARD)
    status, said = stop(folder, signal.Signals[name], moment, words)
    kept = sorted(file.name for file in (folder / "stopped/checkpoints").glob("step-*"))
    ends = [
        subprocess.run(
            command(folder / root, given), cwd=folder, capture_output=True, text=True
        ).returncode
        for root, given in (("stopped", words), ("whole", quiet))
    ]
    one, other = folder / "stopped", folder / "whole"
    return {
        "status": status, "said": said, "kept": kept, "ends": ends,
        "rows": rows_of(one) == rows_of(other), "weights": weights_of(one) == weights_of(other),
        "steps": len(rows_of(other)), "files": len(weights_of(other)),
    }  # fmt: skip


if __name__ == "__main__":
    with ExitStack() as stack:
        root, given = Path(sys.argv[1]), sys.argv[4:]
        os.environ["SLOW"] = str(root / "slow")  # workers of Ray have it from here
        if "FLOWZOO_APART" in os.environ:
            from ray_cluster import NODE, cluster_of, raise_loopback

            raise_loopback()
            cluster = stack.enter_context(cluster_of({**NODE, "num_cpus": 2}))
            given = [*given, f"--ray-address={cluster.address}"]
        found = main(root, sys.argv[2], sys.argv[3], given)
        (root / "found.json").write_text(json.dumps(found))
