"""Matrices: reading, running in processes, killing and resuming, and the numbers of the table."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, wait_for

from flowzoo.baselines.matrix import forks
from flowzoo.baselines.matrix.cell import cell_text
from flowzoo.baselines.matrix.file import FOLDER as MATRICES
from flowzoo.baselines.matrix.file import load_matrix, read_matrix
from flowzoo.baselines.matrix.forks import Fork
from flowzoo.baselines.matrix.jobs import TrainingJob
from flowzoo.baselines.matrix.run import execute, training_jobs
from flowzoo.baselines.report.matrix_facts import as_text, tables
from flowzoo.baselines.report.words import finite_only
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import FOLDER, bundled_names, load_config
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import train
from flowzoo.commands.matrix import Options, move_aside
from flowzoo.errors import DataError, UsageError
from tests.baselines.bundled import POCKET
from tests.refused import refused

SMALL = {
    "steps": 4, "problems": 2, "samples": 2, "eval_problems": 4, "eval_every": 4,
    "checkpoint_every": 1, "max_tokens": 16, "threads": 1, "options": ["level=1"],
}  # fmt: skip
TWO = Path(__file__).with_name("two.toml")


def made(table: Mapping[str, Any]) -> list[str]:
    """Names of the cells of a table."""
    return [cell.name for cell in read_matrix(table, "m", "here").cells]


# -- reading -----------------------------------------------------------------------------------


def test_lists_of_a_block_are_multiplied_and_later_settings_win():
    table = {
        "seeds": [3, 1],
        "settings": {"steps": 5, "problems": 4},
        "cells": [
            {"workflow": ["voting", "eval_opt"], "sharing": ["shared", ["generator=a"]],
             "settings": {"problems": 8}},
            {"workflow": ["voting"], "algorithm": ["magrpo"], "label": "long",
             "settings": {"steps": 50}},
        ],
    }  # fmt: skip
    matrix = read_matrix(table, "m", "here")
    assert matrix.seeds == (3, 1)
    assert [cell.name for cell in matrix.cells] == [
        "voting-math-grpo-shared", "voting-math-grpo-generator_a", "eval_opt-math-grpo-shared",
        "eval_opt-math-grpo-generator_a", "voting-math-magrpo-isolated-long",
    ]  # fmt: skip
    assert [cell.config.steps for cell in matrix.cells] == [5, 5, 5, 5, 50]
    assert [cell.config.problems for cell in matrix.cells] == [8, 8, 8, 8, 4]
    run = matrix.cells[0].run(1, Path("runs/m"))
    assert (run.seed, run.out) == (1, "runs/m/voting-math-grpo-shared/seed-1")


def test_models_have_their_part_in_the_name():
    models = ["pocket", "pocket:xs", "pocket:code", "pocket:math-s", "Qwen/Qwen3-0.6B"]
    assert made({"cells": [{"workflow": ["single"], "model": models}]}) == [
        "single-math-grpo-shared", "single-math-grpo-shared-xs",
        "single-math-grpo-shared-pocket-code", "single-math-grpo-shared-pocket-math-s",
        "single-math-grpo-shared-Qwen3-0.6B",
    ]  # fmt: skip


def test_cells_play_an_environment_in_place_of_a_workflow():
    table = {
        "seeds": [0],
        "settings": {"env": "games.py:make", "model": "pocket:math", "options": ["illegal=end"]},
        "cells": [{"algorithm": ["grpo", "dr_mas"]}],
    }
    matrix = read_matrix(table, "games", "games.toml")
    assert [cell.name for cell in matrix.cells] == [
        "aec-games.py-make-grpo-shared-pocket-math",
        "aec-games.py-make-dr_mas-shared-pocket-math",
    ]
    assert {cell.task for cell in matrix.cells} == {"games.py:make"}


@pytest.mark.parametrize(("table", "message"), refused(__file__, "matrices", tuples=False))
def test_mistakes_in_a_matrix_are_named(table, message):
    with pytest.raises(UsageError, match=message):
        read_matrix(table, "m", "here")


def test_the_bundled_matrix_holds_the_cells_that_learning_is_judged_by():
    assert "learning" in bundled_names(MATRICES)
    matrix = load_matrix("learning")
    names = {cell.name for cell in matrix.cells}
    wanted = {
        f"voting-math-{cell}"
        for cell in ("grpo-shared", "grpo-isolated", "dr_mas-shared", "dr_mas-isolated",
                     "dr_grpo-shared", "at_grpo-isolated", "magrpo-isolated")
    }  # fmt: skip
    wanted |= {f"eval_opt-math-{one}-isolated" for one in ("grpo", "dr_mas")}
    wanted |= {f"tool_planner-plan_path-{one}-isolated" for one in ("grpo", "at_grpo")}
    wanted |= {
        f"{workflow}-code-grpo-{sharing}"
        for workflow in ("voting", "eval_opt")
        for sharing in ("shared", "isolated")
    }
    assert wanted | {"search_team-search-dr_mas-isolated"} == names
    assert len(matrix.seeds) == 3
    assert all((cell.config.eval_problems or 500) >= 500 for cell in matrix.cells)


def test_the_map_has_cells_of_both_kinds_each_with_its_control():
    matrix = load_matrix("map")
    cells = [cell for cell in matrix.cells if not cell.control]
    labels = [cell.label for cell in cells]
    assert (labels.count("should-pay"), labels.count("should-not")) == (3, 4)
    assert len(matrix.seeds) >= 5
    for cell in cells:
        assert [one.control and one.is_control_of(cell) for one in matrix.cells].count(True) == 1
        resolve(cell.config)


def test_cells_of_spikes_differ_in_the_groups_of_the_advantage_alone():
    whole, split, *others = load_matrix("spikes").cells
    assert (len(others), split.config.algorithm) == (2, "dr_mas")
    for one, two in ((whole, split), others):
        assert replace(one.config, advantage=()) == two.config
        spec = resolve(one.config).compute_advantages.spec
        assert spec.mean_group == spec.std_group == ("problem",)


def test_the_papers_cells_in_miniature_are_42_and_their_settings_hold():
    matrix = load_matrix("workflows")
    cells = [cell for cell in matrix.cells if not cell.control]
    controls = [cell for cell in matrix.cells if cell.control]
    assert (len(cells), len(controls), len(matrix.seeds)) == (36, 6, 3)
    axes = {
        (cell.config.workflow, cell.task, cell.config.model, cell.config.sharing) for cell in cells
    }
    assert len(axes) == 36
    assert {cell.config.workflow for cell in cells} == {"voting", "orch_workers", "eval_opt"}
    assert {cell.task for cell in cells} == {"math", "code"}
    assert all(sum(one.is_control_of(cell) for one in controls) == 1 for cell in cells)
    assert all(sum(one.is_control_of(cell) for cell in cells) == 6 for one in controls)
    for cell in matrix.cells:
        resolve(cell.config)
    names = {cell.name for cell in matrix.cells}
    assert {"voting-math-paper-isolated-xs", "single-code-paper-m"} <= names


def test_the_pilot_is_a_part_of_the_whole_and_long_enough_for_a_rise_and_a_fall():
    whole = {cell.name: cell.config for cell in load_matrix("workflows").cells}
    pilot = load_matrix("pilot")
    assert all(whole[cell.name] == cell.config for cell in pilot.cells)
    assert sum(not cell.control for cell in pilot.cells) == 12
    assert len(pilot.seeds) >= 3
    for config in (cell.config for cell in pilot.cells if not cell.control):
        assert (config.steps, config.updates, config.schedule) == (120, 1, "constant")
        assert (config.eval_problems or 500) >= 500
        assert config.steps // config.eval_every + 1 >= 15


def test_the_zoo_has_every_failure_beside_its_remedies_and_seeds_for_a_rate():
    zoo = load_matrix("zoo")
    assert len(zoo.seeds) >= 6
    groups: dict[str, list[str]] = {}
    for cell in zoo.cells:
        resolve(cell.config)
        groups.setdefault(cell.label[0], []).append(cell.label)
        assert cell.config.steps // cell.config.eval_every + 1 >= 5, "a verdict needs as many"
    assert sorted(groups) == ["A", "B", "C", "D"]
    assert all(len(labels) >= 4 for labels in groups.values())
    assert {"A-n12", "B", "C", "D"} <= {cell.label for cell in zoo.cells}


def test_a_file_that_is_not_there_or_no_toml(tmp_path):
    with pytest.raises(UsageError, match=r"unknown matrix 'lerning'.*'learning'"):
        load_matrix("lerning")
    with pytest.raises(UsageError, match="there is no file"):
        load_matrix("nowhere.toml")
    (tmp_path / "m.toml").write_text("seeds = [")
    with pytest.raises(DataError, match="is not TOML"):
        load_matrix(str(tmp_path / "m.toml"))


CONFIGS = [
    TrainConfig(),
    *(load_config(name) for name in bundled_names(FOLDER)),
    *map(load_config, POCKET),
    TrainConfig(
        options=('data=a "b"\\c.jsonl', "level=1-2", "naïve=\U0001f600"), kl=0.0, lr=1e-6,
        deterministic=False, pass_rates=(0.0, 1.0), out="somewhere/é", samples=3,
    ),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_the_settings_of_a_run_survive_its_file(config, tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text(cell_text(config), encoding="utf-8")
    assert load_config(str(path), workflow="") == config  # `train --config` assumes no workflow


# -- running -----------------------------------------------------------------------------------


def test_what_was_begun_under_older_defaults_is_taken_up(tmp_path):
    def jobs(**settings):
        table = {"seeds": [0], "settings": settings, "cells": [{"workflow": ["single"]}]}
        return training_jobs(read_matrix(table, "m", "here"), tmp_path)

    folder = jobs()[0].folder
    folder.mkdir(parents=True)
    (folder / "cell.toml").write_text('workflow = "single"\n')  # what was the default is not there
    began = {"settings": {"eval_every": 20, "checkpoint_every": 10}}
    (folder / "run.json").write_text(json.dumps(began))
    (folder / "metrics.jsonl").write_text('{"step": 0}\n')
    for settings in ({}, {"eval_every": 20}):
        assert jobs(**settings)[0].config.eval_every == 20
    with pytest.raises(UsageError, match="holds a run of other settings"):
        jobs(eval_every=8)


def test_a_damaged_run_is_left_to_its_own_process(tmp_path):
    matrix = read_matrix({"seeds": [0, 1], "cells": [{"workflow": ["single"]}]}, "m", "here")
    for job, summary in zip(training_jobs(matrix, tmp_path), ("{}", '{"steps": 4}'), strict=True):
        job.folder.mkdir(parents=True)
        job.arguments()  # writes cell.toml
        (job.folder / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\nnothing\n')
        (job.folder / "run.json").write_text("{")
        (job.folder / "summary.json").write_text(summary)
    damaged, whole = training_jobs(matrix, tmp_path)
    assert (damaged.state, whole.state) == ("waiting", "finished")
    assert damaged.newest() == {"step": 1}
    (whole.folder / "summary.json").write_text("{")
    assert training_jobs(matrix, tmp_path)[1].state == "waiting"


def test_restart_keeps_the_runs_of_the_cells_that_are_named(tmp_path, capsys):
    table = {"seeds": [0, 1], "cells": [{"workflow": ["single", "voting"]}]}
    matrix = read_matrix(table, "m", "here")
    for job in training_jobs(matrix, tmp_path):
        job.folder.mkdir(parents=True)
        job.arguments()  # writes cell.toml
    for options in (
        Options("m", restart=True),
        Options("m", restart=True, only=("single",), table=True),
        Options("m", restart=True, only=("single",), dry_run=True),
    ):
        with pytest.raises(UsageError, match="name their cells with --only"):
            move_aside(matrix, tmp_path, options)
    move_aside(matrix, tmp_path, Options("m", restart=True, only=("single",)))
    assert sorted(str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("*.toml")) == [
        "single-math-grpo-shared/seed-0.1", "single-math-grpo-shared/seed-1.1",
        "voting-math-grpo-shared/seed-0", "voting-math-grpo-shared/seed-1",
    ]  # fmt: skip
    assert capsys.readouterr().err.count("was moved to") == 2


def in_use(folder: Path) -> bool:
    """True if a process trains in `folder`, whose lock ends with it."""
    with (folder / ".lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels other than Linux's")
@pytest.mark.full
def test_what_was_killed_goes_on_and_what_is_finished_stays(
    tmp_path, hold_before, warm, repeated_rows
):
    matrix = load_matrix(str(TWO))
    out = tmp_path / "out"
    for cell, name in ((0, "alone"), (1, "out/single-math-dr_mas-shared/seed-0")):
        train(replace(matrix.cells[cell].config, out=str(tmp_path / name)))
    runs = training_jobs(matrix, out)
    assert [run.state for run in runs] == ["waiting", "finished"]
    victim = runs[0]
    finished = (runs[1].folder / "summary.json").stat().st_mtime_ns
    held = hold_before(victim.folder / "checkpoints" / "step-00000002")

    def kill_the_first():
        if victim.process is not None and held.exists():
            victim.process.kill()

    execute(runs, 2, kill_the_first)
    assert [run.state for run in runs] == ["failed", "finished"]
    assert not (victim.folder / "summary.json").exists()

    words = ["flowzoo.cli", "matrix", str(TWO), f"--out={out}", "--jobs=1"]
    held = hold_before(victim.folder / "checkpoints" / "step-00000003")
    begun = warm(words)
    wait_for(held.exists, 300)
    assert in_use(victim.folder)
    begun.kill()
    wait_for(lambda: not in_use(victim.folder))

    again = training_jobs(matrix, out)
    assert [run.state for run in again] == ["waiting", "finished"]
    done = warm([*words, "--json"]).finish()
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert [row["cell"] for row in table["cells"]] == [
        "single-math-grpo-shared",
        "single-math-dr_mas-shared",
    ]
    assert (table["runs"], table["controls"], table["parity"]) == (2, [], [])
    assert json.loads((out / "table.json").read_text()) == table
    assert "2 finished runs took" in (out / "table.md").read_text()
    assert (runs[1].folder / "summary.json").stat().st_mtime_ns == finished
    assert [row["step"] for row in repeated_rows(victim.folder)] == [0, 1, 2, 3, 4]
    assert again[0].newest()["step"] == 4
    assert repeated_rows(victim.folder) == repeated_rows(tmp_path / "alone")

    named_otherwise = training_jobs(matrix, Path(os.path.relpath(out)))
    assert [run.state for run in named_otherwise] == ["finished", "finished"]
    with pytest.raises(UsageError, match="holds a run of other settings"):
        training_jobs(read_matrix({"seeds": [0], "settings": {**SMALL, "lr": 1e-3},
             "cells": [{"workflow": ["single"]}]}, "m", "here"), out)  # fmt: skip


@pytest.mark.full
def test_a_cell_that_fails_is_named_with_its_log_and_the_others_go_on(tmp_path, warm):
    text = TWO.read_text().replace('["grpo", "dr_mas"]', '["grpo"]')
    # Training on held-out problems: found by the run, not by the file.
    text += '[[cells]]\nworkflow = ["single"]\nlabel = "bad"\nsettings = { split = "all" }\n'
    (tmp_path / "m.toml").write_text(text.replace("steps = 4", "steps = 1"))
    out = tmp_path / "out"
    words = ["flowzoo.cli", "matrix", str(tmp_path / "m.toml"), f"--out={out}", "--jobs=2"]
    done = warm([*words, "--json"]).finish()
    assert done.returncode == 1
    bad = out / "single-math-grpo-shared-bad" / "seed-0"
    said = f"failed: single-math-grpo-shared-bad seed 0; why: {bad / 'log.txt'}"
    assert said in done.stderr
    assert "trains on held-out problems" in (bad / "log.txt").read_text()
    cells = json.loads(done.stdout)["cells"]
    assert [row["cell"] for row in cells] == ["single-math-grpo-shared"]


def test_two_processes_never_train_in_one_folder(tmp_path):
    from flowzoo.baselines.training.trainer import Trainer

    config = TrainConfig(**{**SMALL, "options": (), "workflow": "single", "out": str(tmp_path)})
    trainer = Trainer(start_run(config))
    with pytest.raises(UsageError, match="another process is training in"):
        Trainer(start_run(config))
    trainer.close()
    Trainer(start_run(config)).close()


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_jobs_is_a_mistake(jobs):
    with pytest.raises(UsageError, match="`jobs` must be at least 1"):
        execute([], jobs)


# -- the table ---------------------------------------------------------------------------------


def finished(root: Path, first: list[float], last: list[float], **cost: float) -> TrainingJob:
    """A finished run with these scores."""
    matrix = read_matrix({"cells": [{"workflow": ["single"]}]}, "m", "here")
    config = replace(matrix.cells[0].config, seed=int(root.name.removeprefix("seed-")))
    cost = {"tokens/total": 100, "time/total": 60.0} | cost
    lines = [
        {"step": 0, "eval/scores": first, "tokens/total": 0, "time/total": 1.0},
        {"step": 1, "version/shared": 0},
        {"step": 2, "version/shared": 1, "eval/scores": last} | cost,
    ]
    root.mkdir(parents=True)
    (root / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "summary.json").write_text(json.dumps({"policy_updates": {"shared": 2}}))
    (root / "run.json").write_text(json.dumps({"settings": asdict(config)}))
    return TrainingJob(matrix.cells[0], replace(config, out=str(root)), state="finished")


def test_the_numbers_of_the_table_by_hand(tmp_path):
    runs = [
        finished(tmp_path / "seed-0", [0, 0, 1, 0], [1, 1, 1, 0]),
        finished(tmp_path / "seed-1", [0, 1, 1, 0], [1, 1, 1, 0],
                 **{"tokens/total": 301, "time/total": 120.0}),
    ]  # fmt: skip
    found = tables(runs)
    (row,) = found["cells"]
    costs = [row[name] for name in ("seeds", "items", "tokens", "updates", "minutes")]
    assert costs == [2, 4, 200, 2.0, 1.5]
    levels = [row[name] for name in ("before", "after", "gain", "lowest")]
    assert levels == [0.375, 0.75, 0.375, 0.25]
    # Gains of 0.5 and 0.25: a deviation of 0.1768, over the root of 2 seeds.
    assert row["se"] == pytest.approx(0.125)
    # Items' mean gains are 1, 0.5, 0 and 0: means of four of them lie between 0 and 1.
    assert 0 <= row["low"] < row["gain"] < row["high"] <= 1
    assert (found["runs"], found["minutes"]) == (2, 3.0)
    text = as_text(found)
    assert text.splitlines()[2].startswith(
        "| single-math-grpo-shared | 2 | 37.5 % | 75.0 % | +37.5 |"
    )
    assert text.endswith("2 finished runs took 3 minutes in all.\n")
    alone = finite_only(tables(runs[:1]))["cells"][0]
    assert (alone["gain"], alone["se"]) == (0.5, None), "one seed has no spread"


def test_numbers_that_json_does_not_have_are_none(tmp_path):
    run = finished(tmp_path / "seed-0", [0.0], [1.0], **{"time/total": float("inf")})
    found = finite_only(tables([run]))
    assert (found["minutes"], found["cells"][0]["minutes"], found["cells"][0]["se"]) == (None,) * 3


def test_runs_that_are_not_finished_are_not_in_the_table(tmp_path):
    run = finished(tmp_path / "seed-0", [0.0], [1.0])
    run.state = "failed"
    assert tables([run])["cells"] == []
    run.state = "finished"
    (run.folder / "metrics.jsonl").write_text('{"step": 0}\n')
    with pytest.raises(DataError, match="has fewer than two evaluations"):
        tables([run])


def test_the_newest_metrics_are_read_line_by_line_and_again_after_a_resumption(tmp_path):
    run = finished(tmp_path / "seed-0", [0.0], [1.0])
    path = run.folder / "metrics.jsonl"
    path.write_text('{"step": 0, "a": 1}\n{"step": 1}\n{"ste')
    assert run.newest() == {"step": 1, "a": 1}
    with path.open("a") as file:
        file.write('p": 2}\n')
    assert run.newest()["step"] == 2
    path.write_text('{"step": 1}\n')
    assert run.newest()["step"] == 1


ECHO = """
import os, sys, time
print(os.getpid(), sys.argv, os.environ.get("COLOR"), __name__)
assert sys.argv[1] != "fail", "as asked"
if sys.argv[1] == "wait":
    print("waits", flush=True)
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""
STARTS = """
import os, sys, pathlib
from flowzoo.baselines.matrix import forks
forks.PRELOADED = ()
fork = forks.Fork(["echo_arguments", "wait"], pathlib.Path(sys.argv[1]), os.environ)
print(fork.pid, flush=True)
fork.wait()
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables with which the module `echo_arguments` is found."""
    (tmp_path / "echo_arguments.py").write_text(ECHO)
    monkeypatch.syspath_prepend(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(Path(forks.__file__).parents[3])])
    return {**os.environ, "PYTHONPATH": path}


def test_a_fork_is_as_after_python_m(environment, tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("before\n")
    one = Fork(["echo_arguments", "0"], log, {**environment, "COLOR": "red"})
    two = Fork(["echo_arguments", "7"], tmp_path / "two.txt", environment)
    three = Fork(["echo_arguments", "fail"], tmp_path / "three.txt", environment)
    four = Fork(["nothing.there"], tmp_path / "four.txt", environment)
    assert [one.wait(60), two.wait(60), three.wait(60), four.wait(60)] == [0, 7, 1, 1]
    first, line = log.read_text().splitlines()
    assert first == "before"
    assert line.startswith(f"{one.pid} [")
    assert line.endswith("'0'] red __main__")
    assert "None __main__" in (tmp_path / "two.txt").read_text()
    assert "AssertionError: as asked" in (tmp_path / "three.txt").read_text()
    assert "No module named 'nothing'" in (tmp_path / "four.txt").read_text()
    assert one.poll() == 0
    one.kill()  # what has ended is let alone, whoever has its number now


def test_one_is_interrupted_or_killed_and_the_others_go_on(environment, tmp_path):
    logs = [tmp_path / f"{number}.txt" for number in range(3)]
    three = [Fork(["echo_arguments", "wait"], log, environment) for log in logs]
    for log in logs:
        wait_for(lambda log=log: log.exists() and "waits" in log.read_text())
    three[0].send_signal(signal.SIGINT)
    assert three[0].wait(60) == 1
    assert "KeyboardInterrupt" in (tmp_path / "0.txt").read_text()
    three[1].kill()
    assert three[1].wait(60) == -signal.SIGKILL
    assert three[2].poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        three[2].wait(0.2)
    three[2].kill()
    assert three[2].wait(60) == -signal.SIGKILL


@pytest.mark.full
def test_forks_end_with_a_matrix_that_is_killed(environment, tmp_path):
    log = tmp_path / "log.txt"
    words = [sys.executable, "-c", STARTS, str(log)]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as matrix:
        pid = int(matrix.stdout.readline())
        wait_for(lambda: log.exists() and "waits" in log.read_text())
        matrix.kill()
    wait_for(lambda: not is_running(pid))
