"""The speed benchmarks run, print and write; their figures are not tested."""

import json
import platform
import re
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.harness.machine_load import Others, tree_seconds, wait_until_quiet
from benchmarks.harness.timing import Contender, Lap, Workload, race, spread, summary
from benchmarks.speed import learner
from benchmarks.speed.__main__ import (
    BENCHES,
    bench_named,
    command_of,
    main,
    module_of,
    read_benches,
    run_bench,
    usual_benches,
    write_benches,
)
from flowzoo.agents.pocket import pocket_path
from flowzoo.errors import DataError, UsageError

QUICK = Workload(rounds=2, scale=0.01)


def test_a_file_keeps_the_other_benches_and_grows_with_every_row(tmp_path):
    path = tmp_path / "deep" / "bench.json"
    assert read_benches(path) == {}
    write_benches(path, {"older": {"rows": []}})
    sizes = []

    def keep(results):
        write_benches(path, read_benches(path) | {"rollout": results})
        sizes.append(len(read_benches(path)["rollout"]["rows"]))

    run_bench("rollout", lambda plan: iter([{"case": "a"}, {"case": "b"}]), QUICK, 0, print, keep)
    assert sizes == [1, 2]
    assert sorted(read_benches(path)) == ["older", "rollout"]
    path.write_text("{}")
    with pytest.raises(DataError, match=r"expected a file that `python -m benchmarks\.speed"):
        read_benches(path)


def test_every_bench_has_a_module_and_the_usual_ones_need_no_options():
    for name in BENCHES:
        assert find_spec(module_of(name)) is not None, name
    assert set(usual_benches()) <= set(BENCHES)
    assert command_of("rollout", Workload()) == "python -m benchmarks.speed rollout"
    command = "python -m benchmarks.speed math --rounds 2 --scale 0.01 --data …"
    assert command_of("math", QUICK) == command
    with pytest.raises(UsageError, match="environments"):
        bench_named("enviroments")


def test_the_command_measures_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "found.json"
    args = ["environments", "rollout", "--rounds", "2", "--scale", "0.004"]
    assert main([*args, "--wait", "0", "--out", str(path)]) == 0
    message = capsys.readouterr().out
    text = path.read_text()
    results = json.loads(text)["benches"]
    assert list(results) == ["environments", "rollout"]
    [row] = results["rollout"]["rows"]
    assert list(row["contenders"]) == ["floor", "rollout", "rollout, order of arrival", "tree of 4"]
    assert row["contenders"]["rollout"]["cpu_ratio"]["median"] > 1
    assert results["rollout"]["machine"]["cores"] >= 1
    for name in ("floor", "guarded", "tree of 4"):
        assert name in message
    assert platform.node() not in text or len(platform.node()) < 4
    assert not re.search(r"/(home|tmp|work|root|usr)/", text)


def test_mistakes_and_the_list(capsys):
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BENCHES)
    assert main(["rolout"]) == 2
    assert "Did you mean 'rollout'" in capsys.readouterr().err
    assert main(["rollout", "--scale", "0"]) == 2
    assert "--scale above 0" in capsys.readouterr().err


@pytest.mark.full
def test_math_says_which_files_are_missing(tmp_path):
    rows = list(bench_named("math")(Workload(1, 0.01, data=str(tmp_path))))
    assert [list(row["absent"].values()) for row in rows] == [
        ["no such file in the folder of --data"]
    ] * 3


@pytest.mark.full
def test_the_diagnostics_are_timed():
    assert all(row["case"] for row in bench_named("diagnostics")(Workload(1, 0.06)))


@pytest.mark.full
def test_a_learner_is_timed_in_a_process_of_its_own(monkeypatch, tmp_path):
    """One process is started here; the steps of the others are done in this one."""
    monkeypatch.setattr(learner, "CASES", ("whole",))
    [row] = learner.measure(Workload(1, 0.06))
    assert list(row["contenders"]) == ["flowzoo"]
    assert row["absent"]
    rows = learner.sample_rows("voting", 1)
    job = {"model": str(pocket_path()), "given": rows, "lr": 2e-4, "microbatch": 8}
    weights = []
    for layout in ("packed", "padded"):
        index = tmp_path / layout
        index.mkdir()
        step = learner.forced_step({**job, "layout": layout, "folder": str(index)})
        assert step() == sum(len(item["output_ids"]) for item in rows)
        weights.append(torch.load(index / "weights.pt", weights_only=True))
    assert learner.weight_gap(*weights) < 0.01
    assert learner.weight_gap(weights[0], {k: w + 1e-4 for k, w in weights[0].items()}) == 1.0


# -- Paired timing: order of contenders, ratios, medians -------------------------------------------


def test_rounds_go_there_and_back():
    order: list[str] = []

    def work(name):
        return lambda: order.append(name) or 1

    results = race([Contender(name, work(name)) for name in "abc"], 3)
    assert "".join(order) == "abccbaabc"
    assert [len(item["laps"]) for item in results["contenders"].values()] == [3, 3, 3]


def test_ratios_are_of_a_round_and_per_unit():
    # The machine is ten times as slow in the second round; the ratio does not change.
    laps = {
        "floor": [Lap(10, 1.0, 2.0), Lap(10, 10.0, 20.0), Lap(10, 1.0, 2.0)],
        "ours": [Lap(5, 1.5, 4.0), Lap(5, 15.0, 40.0), Lap(5, 1.5, 4.0)],
    }
    results = summary(laps)
    assert results["ours"]["cpu_ratio"] == {"median": 3.0, "low": 3.0, "high": 3.0}
    assert results["ours"]["wall_ratio"]["median"] == 4.0
    assert results["ours"]["beside"] == "floor"
    assert results["floor"]["cpu_us"] == {"median": 1e5, "low": 1e5, "high": 5.5e5}
    assert "cpu_ratio" not in results["floor"]
    assert spread([7.0]) == {"median": 7.0, "low": 7.0, "high": 7.0}


# -- Load of other processes -----------------------------------------------------------------------


def test_others_are_what_is_not_ours():
    before = tree_seconds()
    others = Others.watch()
    sum(range(3_000_000))
    assert tree_seconds() - before > 0.01
    cores = others.cores()
    assert cores is None or cores >= 0.0
    assert (wait_until_quiet(0.0) is None) == (cores is None)


# -- The scripts of benchmarks.gpu at tiny size ----------------------------------------------------


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
def test_the_learner_script_runs_here_at_tiny_size(tmp_path):
    file = tmp_path / "out.json"
    # Its own process: the memory of this one may have been larger before.
    command = [sys.executable, "-m", "benchmarks.gpu.learner", "--rows=4", "--updates=1", "--lora"]
    subprocess.run([*command, f"--json={file}"], check=True, cwd=ROOT)
    matches = json.loads(file.read_text())
    assert 0 < matches["trained_parameters"] < matches["parameters"]
    assert matches["tokens_per_second"] > 0
    assert matches["memory"]["most at a time"] > 0
    assert matches["estimate"]["adapter"] == 4 * matches["trained_parameters"]


@pytest.mark.full
def test_equal_runs_are_equal_here(tmp_path, monkeypatch):
    file = tmp_path / "out.json"
    run_here(monkeypatch, "repeat", "--steps=2", f"--json={file}")
    matches = json.loads(file.read_text())
    assert matches["rows"] == 3
    equal = {"metric": 0.0, "which": "", "weight": 0.0, "same": True}
    assert matches["twice"] == matches["resumed"] == equal


@pytest.mark.full
def test_all_gpu_measurements_go_on_after_one_that_takes_too_long(tmp_path, monkeypatch, capsys):
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


# -- Rows of the table of libraries: what works, what cannot, and whose reward rises ---------------


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/third_party"))
    import rows

    return rows


def rewards(first, last):
    return lambda seed: [first] * 100 + [0.0] * 50 + [last + seed / 100] * 100


def test_a_reward_that_rises_is_a_row_with_its_interval(rows):
    cell = rows.rise("sb3_ppo", rewards(0.25, 0.75))
    assert cell.startswith("rises from 0.25 to 0.76 (+0.49 to +0.53); ")


@pytest.mark.parametrize("last", [0.25, 0.24, 0.0])
def test_a_reward_that_does_not_rise_is_a_fault(rows, last):
    row = rows.Row("a script", lambda: rows.rise("sb3_ppo", rewards(0.25, last)))
    assert "the reward did not rise: 0.25 to" in row.run()[1]


def test_a_row_that_cannot_says_so_or_is_a_fault(rows):
    def check():
        raise ValueError("no texts")

    assert rows.Row("texts", check, error="no texts", why="arrays").run() == ("cannot: arrays", "")
    assert rows.Row("texts", check).run()[1].startswith("ValueError: no texts")
    assert "was to fail" in rows.Row("texts", dict, error="no texts").run()[1]
    assert rows.Row("texts", dict, using="`TextEnv`").run() == ("works with `TextEnv`", "")


def test_every_script_that_learns_is_short():
    folder = ROOT / "benchmarks/third_party"
    scripts = [path for path in folder.glob("*.py") if "def train(seed" in path.read_text("utf-8")]
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in scripts}
    assert len(lengths) >= 3
    assert max(lengths.values()) <= 40, lengths


@pytest.fixture
def stacks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/third_party"))
    import run

    return run


def test_a_newest_stack_is_installed_without_versions(stacks):
    assert stacks.packages_of("trl==newest")[0] == "trl"
    assert stacks.packages_of("trl==1.18.0")[0] == "trl==1.18.0"
    assert not any("==" in package for package in stacks.packages_of("pettingzoo==newest"))


def test_a_newest_stack_that_breaks_says_where(stacks):
    found = stacks.unreported("trl", "Traceback\nImportError: no module")
    row = stacks.newest_row("trl==newest", found)
    assert row[0] == "**trl**"
    assert row[-1] == "script: ImportError: no module"
    rows = [("a", "works"), ("b", "works")]
    found = {"library": "L", "versions": {"l": "2"}, "rows": rows, "faults": {"b": "E: x\nmore"}}
    assert stacks.newest_row("trl==newest", found)[2:] == ["l 2", "1 of 2", "b: E: x"]
