"""The command line with vLLM, in processes of its own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from flowzoo.cli import main
from flowzoo.commands import doctor

ROOT = Path(__file__).parents[2]


def run(*args: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *args], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "leaked" not in done.stderr
    return done.stdout


@pytest.mark.vllm
@pytest.mark.full
def test_eval_with_vllm(capsys):
    args = ["eval", "voting", "--n=8", "--engine=vllm", "--max-tokens=40"]
    assert main([*args, "--engine-memory=0.1"]) == 0
    *_, protocol, last = capsys.readouterr().out.splitlines()
    assert last.startswith("accuracy ")
    assert ", float32, " in protocol
    assert main([*args, "--engine-dtype=bfloat16"]) == 0
    assert ", bfloat16, " in capsys.readouterr().out


@pytest.mark.vllm
@pytest.mark.full
def test_a_process_that_trains_with_vllm_ends_with_status_0(tmp_path):
    args = ("--steps=1", "--problems=2", "--samples=2", "--eval-problems=4", "--engine=vllm")
    args = (*args, "--max-tokens=40", f"--out={tmp_path / 'run'}")
    assert "held-out accuracy" in run("-m", "flowzoo.cli", "train", "voting", *args)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["sync/gap_max/shared"] < 1e-3


def test_doctor_names_the_engines_that_can_run_here():
    results = doctor.engines()
    (row,) = [row for row in doctor.examine() if row.name == "engines"]
    assert all(name in row.detail for name in results)
    assert ("vllm" in results) == (find_spec("vllm") is not None and find_spec("torch") is not None)
