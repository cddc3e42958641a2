"""The speed benchmarks run, print and write; their figures are not tested."""

import json
import platform
import re
from importlib.util import find_spec

import pytest
import torch

from benchmarks.harness.timing import Workload
from benchmarks.speed import learner
from benchmarks.speed.__main__ import main
from benchmarks.speed.benches import (
    BENCHES,
    bench_named,
    command_of,
    module_of,
    read_benches,
    run_bench,
    usual_benches,
    write_benches,
)
from benchmarks.speed.scaling import exponent
from flowzoo.agents.pocket import pocket_path
from flowzoo.errors import DataError, UsageError

QUICK = Workload(rounds=2, scale=0.01)


@pytest.mark.parametrize("law", [0.0, 1.0, 2.0])
def test_a_law_is_found_again(law):
    sizes = [2, 4, 8, 16]
    assert exponent(sizes, [0.3 * size**law for size in sizes]) == pytest.approx(law, abs=1e-9)


def test_a_file_keeps_the_other_benches_and_grows_with_every_row(tmp_path):
    path = tmp_path / "deep" / "bench.json"
    assert read_benches(path) == {}
    write_benches(path, {"older": {"rows": []}})
    sizes = []

    def keep(results):
        write_benches(path, read_benches(path) | {"forks": results})
        sizes.append(len(read_benches(path)["forks"]["rows"]))

    run_bench("forks", lambda plan: iter([{"case": "a"}, {"case": "b"}]), QUICK, 0, print, keep)
    assert sizes == [1, 2]
    assert sorted(read_benches(path)) == ["forks", "older"]
    path.write_text("{}")
    with pytest.raises(DataError, match=r"expected a file that `python -m benchmarks\.speed"):
        read_benches(path)


def test_every_bench_has_a_module_and_the_usual_ones_need_no_options():
    for name in BENCHES:
        assert find_spec(module_of(name)) is not None, name
    assert set(usual_benches()) <= set(BENCHES)
    assert command_of("forks", Workload()) == "python -m benchmarks.speed forks"
    command = "python -m benchmarks.speed math --rounds 2 --scale 0.01 --data …"
    assert command_of("math", QUICK) == command
    with pytest.raises(UsageError, match="environments"):
        bench_named("enviroments")


def test_the_command_measures_prints_and_writes(tmp_path, capsys):
    path = tmp_path / "found.json"
    args = ["environments", "rollout", "forks", "--rounds", "2", "--scale", "0.004"]
    assert main([*args, "--wait", "0", "--out", str(path)]) == 0
    message = capsys.readouterr().out
    text = path.read_text()
    results = json.loads(text)["benches"]
    assert list(results) == ["environments", "forks", "rollout"]
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
    assert main(["forks", "--scale", "0"]) == 2
    assert "--scale above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "advantages",
        *(
            pytest.param(name, marks=pytest.mark.full)
            for name in ("scaling", "search", "math_batches")
        ),
    ],
)
def test_a_bench_runs_at_a_hundredth(name):
    rows = list(bench_named(name)(QUICK))
    assert len(rows) >= 2
    for row in rows:
        for item in row.get("contenders", {}).values():
            assert item["cpu_us"]["low"] <= item["cpu_us"]["median"] <= item["cpu_us"]["high"]
        assert set(row.get("absent", {}).values()) <= {"not installed"}


@pytest.mark.full
def test_math_says_which_files_are_missing(tmp_path):
    rows = list(bench_named("math")(Workload(1, 0.01, data=str(tmp_path))))
    assert [list(row["absent"].values()) for row in rows] == [
        ["no such file in the folder of --data"]
    ] * 3


@pytest.mark.full
@pytest.mark.parametrize("name", ["checks", "worlds", "diagnostics"])
def test_the_longer_ones_run(name):
    assert all(row["case"] for row in bench_named(name)(Workload(1, 0.06)))


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
