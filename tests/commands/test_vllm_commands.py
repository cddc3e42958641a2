"""The command line and the benchmark scripts with vLLM, each in a process of its own."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from flowzoo.cli import main
from flowzoo.commands import doctor
from flowzoo.commands.policies import PolicyOptions, build_policy_map
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError

ROOT = Path(__file__).parents[2]


def run(*words: str) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environment, cwd=ROOT, capture_output=True, text=True,
        timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "leaked" not in done.stderr
    return done.stdout


def run_here(monkeypatch: pytest.MonkeyPatch, script: str, *words: str) -> None:
    """A script of benchmarks/gpu as it runs by itself, in this process."""
    path = ROOT / "benchmarks" / "gpu" / script
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.setattr(sys, "argv", [script, *words])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")


@pytest.mark.vllm
@pytest.mark.full
def test_eval_with_vllm(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", "voting", "--n=8", "--engine=vllm", "--max-tokens=40"]
    assert main([*words, "--engine-memory=0.1"]) == 0
    *_, protocol, last = capsys.readouterr().out.splitlines()
    assert last.startswith("accuracy ")
    assert ", float32, " in protocol
    assert main([*words, "--engine-dtype=bfloat16"]) == 0
    assert ", bfloat16, " in capsys.readouterr().out


@pytest.mark.vllm
@pytest.mark.full
def test_a_process_that_trains_with_vllm_ends_with_status_0(tmp_path: Path) -> None:
    words = ("--steps=1", "--problems=2", "--samples=2", "--eval-problems=4", "--engine=vllm")
    words = (*words, "--max-tokens=40", f"--out={tmp_path / 'run'}")
    assert "held-out accuracy" in run("-m", "flowzoo.cli", "train", "voting", *words)
    row = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["sync/gap_max/shared"] < 1e-3


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.parametrize(
    ("script", "words", "key"),
    [
        ("rollout.py", ("--problems=1", "--samples=2", "--workflows=voting", "--lora"), "results"),
        ("step.py", ("--problems=1", "--samples=4", "--steps=1"), "largest_sync_gap"),
    ],
)  # fmt: skip
def test_gpu_scripts_run_here_at_tiny_size(
    tmp_path: Path, script: str, words: tuple[str, ...], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    run_here(monkeypatch, script, *words, "--max-tokens=8", f"--json={file}")
    found = json.loads(file.read_text())
    assert found["machine"]["versions"]["torch"]
    assert found[key]
    if key == "largest_sync_gap":
        assert found[key] < 1e-3


@pytest.mark.vllm
@pytest.mark.full
@pytest.mark.usefixtures("forked_engines")
def test_the_transfer_script_runs_here_at_tiny_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "out.json"
    run_here(monkeypatch, "transfer.py", "--repeats=1", "--limit=2", f"--json={file}")
    (found,) = json.loads(file.read_text())["results"]
    assert found["way"] == "file"
    assert 0 < found["largest_sync_gap"] < 1e-3
    assert found["seconds"] > 0
    assert 2 <= found["stopped"]["seconds_until_error"] < 60
    assert "has not answered in 2 s" in found["stopped"]["error"]
    assert found["killed"]["seconds_until_proved_again"] > 0


@pytest.mark.full
def test_the_learner_script_runs_here_at_tiny_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="needs flowzoo[train]")
    file = tmp_path / "out.json"
    run_here(monkeypatch, "learner.py", "--rows=4", "--updates=1", "--lora", f"--json={file}")
    found = json.loads(file.read_text())
    assert 0 < found["trained_parameters"] < found["parameters"]
    assert found["tokens_per_second"] > 0
    assert found["memory"]["most at a time"] > 0
    assert found["estimate"]["adapter"] == 4 * found["trained_parameters"]


@pytest.mark.full
def test_all_gpu_measurements_go_on_after_one_that_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs flowzoo[train]")
    words = ("--sizes", "tiny", "--out", str(tmp_path), "--only", "attention", "transfer")
    path = ROOT / "benchmarks" / "gpu" / "all.py"
    monkeypatch.setattr(sys, "argv", ["all.py", *words, "--limit", "1"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(path), run_name="__main__")
    found = json.loads((tmp_path / "summary.json").read_text())
    assert [one["ended"] for one in found["steps"]] == ["took more than 1 s"] * 2
    (tmp_path / "transfer-tiny-file.json").write_text(json.dumps({**found["steps"][1], "ended": 0}))
    monkeypatch.setattr(sys, "argv", ["all.py", *words])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    attention, _ = json.loads((tmp_path / "summary.json").read_text())["steps"]
    (row,) = attention["result"]["results"]
    for way in ("packed", "flex"):
        assert row[way]["largest_difference"] < 1e-4
    monkeypatch.setattr(sys, "argv", ["all.py", "--dry"])
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(steps) == len(set(steps)) > 20
    assert steps[0].startswith("smoke")


def test_an_endpoint_needs_its_engine() -> None:
    workflow = make_workflow("voting", "math")
    for options in (PolicyOptions(engine="openai"), PolicyOptions(endpoint="http://h/v1")):
        with pytest.raises(UsageError, match="--engine openai and --endpoint belong together"):
            build_policy_map(workflow, options, 0)


def test_doctor_names_the_engines_that_can_run_here() -> None:
    found = doctor.engines()
    (row,) = [row for row in doctor.examine() if row.name == "engines"]
    assert all(name in row.detail for name in found)
    assert ("vllm" in found) == (find_spec("vllm") is not None and find_spec("torch") is not None)
