"""The scripts of benchmarks.gpu at tiny size."""

import json
import runpy
import sys

import pytest


def run_here(monkeypatch: pytest.MonkeyPatch, script: str, *args: str, status: int = 0) -> None:
    """Run a module of benchmarks.gpu as a program, in this process."""
    monkeypatch.setattr(sys, "argv", [script, *args])
    with pytest.raises(SystemExit, match=str(status)):
        runpy.run_module(f"benchmarks.gpu.{script}", run_name="__main__", alter_sys=True)


@pytest.mark.vllm
@pytest.mark.full
def test_the_step_script_runs_here_at_tiny_size(tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    args = ("--problems=1", "--samples=4", "--steps=1", "--max-tokens=8")
    run_here(monkeypatch, "step", *args, f"--json={file}")
    matches = json.loads(file.read_text())
    assert matches["machine"]["versions"]["torch"]
    assert 0 < matches["largest_sync_gap"] < 1e-3
    assert matches["row of docs/data/real-shapes.json"][0] == "tiny, voting, shared, all weights"


@pytest.mark.full
def test_the_learner_script_runs_here_at_tiny_size(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs flowzoo[train]")
    file = tmp_path / "out.json"
    run_here(monkeypatch, "learner", "--rows=4", "--updates=1", "--lora", f"--json={file}")
    matches = json.loads(file.read_text())
    assert 0 < matches["trained_parameters"] < matches["parameters"]
    assert matches["tokens_per_second"] > 0
    assert matches["memory"]["most at a time"] > 0
    assert matches["estimate"]["adapter"] == 4 * matches["trained_parameters"]


@pytest.mark.full
def test_equal_runs_are_equal_here(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs flowzoo[train]")
    file = tmp_path / "out.json"
    run_here(monkeypatch, "repeat", "--steps=2", f"--json={file}")
    matches = json.loads(file.read_text())
    assert matches["rows"] == 3
    equal = {"metric": 0.0, "which": "", "weight": 0.0, "same": True}
    assert matches["twice"] == matches["resumed"] == equal


@pytest.mark.full
def test_all_gpu_measurements_go_on_after_one_that_takes_too_long(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch", reason="needs flowzoo[train]")
    args = ("--sizes", "tiny", "--out", str(tmp_path), "--only", "repeat", "learner-tiny-lora")
    run_here(monkeypatch, "all", *args, "--limit", "0", status=2)
    matches = json.loads((tmp_path / "summary.json").read_text())
    assert [item["ended"] for item in matches["steps"]] == ["took more than 0 s"] * 2
    (tmp_path / "repeat-float32.json").write_text(json.dumps({**matches["steps"][0], "ended": 0}))
    run_here(monkeypatch, "all", *args)
    _, learner = json.loads((tmp_path / "summary.json").read_text())["steps"]
    assert learner["result"]["tokens_per_second"] > 0
    capsys.readouterr()
    run_here(monkeypatch, "all", "--dry")
    steps = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(steps) == len(set(steps)) > 20
    assert steps[0].startswith("smoke")
