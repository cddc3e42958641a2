"""Budgets of compared cells, controls at equal training tokens, and the time that is left."""

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flowzoo.baselines.matrix.cell import cell_text, is_control
from flowzoo.baselines.matrix.failures import PARTS, as_record, from_record
from flowzoo.baselines.matrix.file import Matrix, load_matrix, read_matrix
from flowzoo.baselines.matrix.jobs import TrainingJob, as_time, remaining_seconds
from flowzoo.baselines.matrix.parity import (
    TrainingCost,
    budget_ratios,
    equal_tokens,
    policy_updates,
    training_cost,
)
from flowzoo.baselines.matrix.run import control_jobs, training_jobs
from flowzoo.baselines.report.matrix_facts import as_text, tables
from flowzoo.baselines.report.words import finite_only
from flowzoo.baselines.run.reading import like_path
from flowzoo.commands.matrix import Options, plan_text, run_table
from flowzoo.commands.matrix import run as matrix_command
from flowzoo.errors import UsageError

CELLS = {"workflow": ["voting"], "sharing": ["shared", "isolated"]}
CONTROL = {"settings": {"problems": 64, "steps": 900}}
SETTINGS = {"steps": 4, "options": ["level=1"]}


def matrix(seeds: tuple[int, ...] = (0,)) -> Matrix:
    """Voting with shared and isolated policies, and their control."""
    table = {"seeds": list(seeds), "settings": SETTINGS, "cells": [CELLS], "controls": [CONTROL]}
    return read_matrix(table, "m", "here")


def finish(
    run: TrainingJob,
    scores: list[list[float]],
    tokens: list[int],
    updates: Mapping[str, int],
    seconds: float = 60.0,
) -> None:
    """Write what a run leaves that was evaluated after every step."""
    rows = [
        {"step": step, "eval/scores": one, "tokens/total": total, "time/total": seconds}
        | ({f"version/{name}": step - 1 for name in updates} if step else {})
        for step, (one, total) in enumerate(zip(scores, tokens, strict=True))
    ]
    run.folder.mkdir(parents=True, exist_ok=True)
    (run.folder / "cell.toml").write_text(cell_text(run.config))
    (run.folder / "run.json").write_text(json.dumps({"settings": asdict(run.config)}))
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {
        "policy_updates": updates,
        "training_tokens": tokens[-1],
        "protocol": {"problem_set": "same"},
    }
    run.result.write_text(json.dumps(summary))


def finish_voting(runs: list[TrainingJob]) -> None:
    """Shared: 100 tokens and 2 steps; isolated: 120 and 2 steps of each of two policies."""
    finish(runs[0], [[0, 0], [0, 1], [1, 1]], [0, 50, 100], {"shared": 2})
    finish(runs[1], [[0, 0], [0, 1], [0, 1]], [0, 60, 120], {"generator": 2, "aggregator": 2})


def control_run(tmp_path: Path) -> list[TrainingJob]:
    """Voting and its control, all finished; the control's third evaluation has 150 tokens."""
    runs = training_jobs(matrix(), tmp_path)
    finish_voting(runs)
    runs[2].config = replace(runs[2].config, token_budget=120)
    finish(runs[2], [[0, 0], [1, 0], [1, 0], [0, 0]], [0, 50, 110, 150], {"shared": 3})
    return training_jobs(matrix(), tmp_path)


# -- what is refused ---------------------------------------------------------------------------


def cells(**changed: Any) -> list[dict[str, Any]]:
    """Two blocks that differ in sharing, the second with other settings."""
    return [
        {"workflow": ["voting"], "sharing": ["shared"]},
        {"workflow": ["voting"], "sharing": ["isolated"], "settings": changed},
    ]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"cells": cells(steps=7)},
         "voting-math-grpo-shared and voting-math-grpo-isolated in here differ in sharing and in "
         r"`steps` \(40 and 7\)"),
        ({"cells": cells(updates=2)}, "differ in sharing and in `updates`"),
        ({"cells": cells(problems=8)}, "differ in sharing and in `problems`"),
        ({"cells": cells(samples=4)}, "differ in sharing and in `samples`"),
        ({"cells": cells(token_budget=9)}, "differ in sharing and in `token_budget`"),
        ({"cells": [CELLS], "settings": {"updates": 0}}, "as many optimizer steps as it has rows"),
        ({"cells": [CELLS], "settings": {"schedule_clock": "update", "warmup": 1}},
         "`schedule_clock` update ticks once for every policy"),
        ({"cells": [CELLS], "controls": [{"task": ["code"]}]},
         "the control single-code-grpo in here has no cell to be compared with"),
        ({"cells": [{"workflow": ["single"]}], "controls": [{"label": "b"}]},
         "no cell to be compared with: a workflow of its task"),
        ({"cells": [CELLS], "controls": [{"settings": {"token_budget": 5}}]},
         "has a `token_budget`, which is set from"),
        ({"cells": [CELLS], "controls": [{"settings": {"eval_problems": 5}}]},
         r"differ in `eval_problems` \(5 and None\)"),
        ({"cells": [CELLS], "controls": [{"worklow": ["single"]}]}, "unknown field of a cell"),
        ({"cells": [CELLS], "controls": [{"workflow": ["eval_opt"]}]},
         "the control eval_opt-math-grpo in here must have the workflow single, .* got eval_opt"),
    ],
)  # fmt: skip
def test_unequal_budgets_are_refused_with_the_cells_names(table, message):
    with pytest.raises(UsageError, match=message):
        read_matrix(table, "m", "here")


def test_other_labels_or_other_questions_may_have_other_budgets():
    labeled = [dict(block, label=str(place)) for place, block in enumerate(cells(steps=7))]
    other = [{**cells(steps=7)[1], "algorithm": ["magrpo"]}]
    found = read_matrix({"cells": [*labeled, *other]}, "m", "here").cells
    assert [cell.config.steps for cell in found] == [40, 7, 7]
    assert read_matrix({"cells": cells(lr=1e-3)}, "m", "here").cells[1].config.lr == 1e-3


def test_a_control_may_name_the_version_of_its_workflow():
    table = {"cells": [CELLS], "controls": [{"workflow": ["single_v0"]}]}
    assert read_matrix(table, "m", "here").cells[-1].control
    names = ("single", "single_v12", "single_vote", "voting", None)
    assert [is_control(name) for name in names] == [True, True, False, False, False]


def test_a_control_is_not_compared_with_other_single_agents():
    table = {"cells": [CELLS, {"workflow": ["single"], "label": "free"}], "controls": [{}]}
    *others, control = read_matrix(table, "m", "here").cells
    assert [control.is_control_of(cell) for cell in others] == [True, True, False]


def test_no_bundled_matrix_compares_unequal_budgets():
    for name in ("pilot", "workflows", "smoke"):
        for control in (cell for cell in load_matrix(name).cells if cell.control):
            assert control.config.token_budget == 0
            assert control.config.problems * 1 >= 4 * 4


# -- controls ----------------------------------------------------------------------------------


def test_a_control_waits_for_its_cells_and_then_has_the_tokens_of_the_dearest(tmp_path):
    runs = training_jobs(matrix(), tmp_path)
    assert [run.cell.name for run in runs] == [
        "voting-math-grpo-shared", "voting-math-grpo-isolated", "single-math-grpo",
    ]  # fmt: skip
    assert [run.waits() for run in runs] == [[], [], runs[:2]]
    assert "waits for voting-math-grpo-isolated, voting-math-grpo-shared" in plan_text(runs, [], 1)

    finish_voting(runs)
    again = training_jobs(matrix(), tmp_path)
    control = again[2]
    assert control.waits() == []
    control.folder.mkdir(parents=True)
    assert control.arguments()[:2] == ["flowzoo.cli", "train"]
    assert control.config.token_budget == 120
    text = (control.folder / "cell.toml").read_text()
    assert "token_budget = 120\n" in text

    # Its cells may be gone when it goes on: the budget is its own now.
    (runs[0].folder / "summary.json").unlink()
    later = training_jobs(matrix(), tmp_path)[2]
    assert (later.config.token_budget, later.waits()) == (120, [])
    (control.folder / "cell.toml").write_text(text.replace("steps = 900", "steps = 901"))
    with pytest.raises(UsageError, match="holds a run of other settings"):
        training_jobs(matrix(), tmp_path)


def test_a_control_has_the_tokens_of_its_own_seed(tmp_path):
    runs = training_jobs(matrix((0, 1)), tmp_path)
    assert [run.config.seed for run in runs] == [0, 0, 0, 1, 1, 1]
    finish_voting(runs[:3])
    again = training_jobs(matrix((0, 1)), tmp_path)
    assert again[2].waits() == []
    assert len(again[5].waits()) == 2
    assert {run.config.seed for run in again[5].sources} == {1}


def test_votes_wait_for_both_runs_and_are_recognized_by_their_file(tmp_path):
    runs = training_jobs(matrix(), tmp_path)
    assert [len(vote.waits()) for vote in control_jobs(runs)] == [2, 2]
    assert control_jobs(runs[:2]) == [], "without its control nothing is voted"
    assert len(control_jobs(runs[1:])) == 1, "only what was chosen"
    again = control_run(tmp_path)
    found = control_jobs(again)
    assert [(vote.state, vote.waits()) for vote in found] == [("waiting", [])] * 2
    assert found[0].arguments() == [
        "flowzoo.baselines.matrix.controls",
        f"--run={again[2].folder}", f"--like={again[0].folder}", "--trust",
    ]  # fmt: skip
    like_path(again[2].folder, again[1].folder).write_text("{}")
    assert [vote.state for vote in control_jobs(again)] == ["waiting", "finished"]


ONE_CONTROL = """
seeds = [0]
[[cells]]
workflow = ["voting", "eval_opt"]
[[controls]]
task = ["math"]
"""


def test_a_control_whose_cells_are_left_out_names_them_and_is_no_success(tmp_path, capsys):
    (tmp_path / "m.toml").write_text(ONE_CONTROL)
    out = tmp_path / "out"
    options = Options(str(tmp_path / "m.toml"), out=str(out), only=("single",))
    assert matrix_command(options) == 1
    said = capsys.readouterr().err
    assert (
        "single-math-grpo seed 0 waits for voting-math-grpo-shared, eval_opt-math-grpo-shared, "
        "which --only leaves out\n" in said
    )
    assert "repeat the command without --only" in said
    assert "are not finished" not in said
    assert matrix_command(replace(options, table=True)) == 0, "nothing was to be run"
    assert "waits for voting-math-grpo-shared" in capsys.readouterr().err


def test_votes_of_a_control_that_cannot_start_are_not_said_to_go_on(tmp_path, capsys):
    (tmp_path / "m.toml").write_text(ONE_CONTROL)
    options = Options(str(tmp_path / "m.toml"), out=str(tmp_path / "out"), table=True)
    assert matrix_command(replace(options, only=("single", "voting"))) == 0
    said = capsys.readouterr().err
    assert "single-math-grpo seed 0 waits for eval_opt-math-grpo-shared, which" in said
    assert "1 of 3 jobs are not finished" in said, "the run of voting alone"
    assert matrix_command(options) == 0
    assert "5 of 5 jobs are not finished" in capsys.readouterr().err


# -- the budgets -------------------------------------------------------------------------------


def test_the_control_is_compared_where_it_has_the_workflows_tokens(tmp_path):
    run = control_run(tmp_path)[2].data()
    places = [equal_tokens(run, tokens) for tokens in (0, 1, 50, 100, 120, 150, 151)]
    assert places == [0, 1, 1, 2, 3, 3, None]
    assert [policy_updates(run, step) for step in (1, 2)] == [{"shared": 1}, {"shared": 2}]
    assert (training_cost(run, 2), training_cost(run)) == (
        TrainingCost(110, 2.0),
        TrainingCost(150, 3.0),
    )


def test_parity_is_flagged_beyond_five_per_cent():
    ratios, flags = budget_ratios(
        [(TrainingCost(100, 2), TrainingCost(96, 2)), (TrainingCost(100, 2), TrainingCost(100, 2))]
    )
    assert (flags, ratios) == ([], pytest.approx([200 / 196, 1.0]))
    both = budget_ratios([(TrainingCost(106, 8), TrainingCost(100, 2))])
    assert both[1] == ["tokens", "optimizer steps"]
    assert budget_ratios([(TrainingCost(94, 2), TrainingCost(100, 2))])[1] == ["tokens"]
    nothing = budget_ratios([(TrainingCost(1, 1), TrainingCost(0, 1))])
    assert nothing[1] == ["tokens"], "nothing to divide by"


def test_the_tables_of_controls_and_budgets_by_hand(tmp_path):
    runs = control_run(tmp_path)
    record = {
        "workflow": {"run": "voting-math-grpo-shared--seed-0"},
        "votes": {"calls": {"k": 4, "scores": [0, 1]}, "tokens": {"k": 3, "scores": [0, 0]}},
    }
    like_path(runs[2].folder, runs[0].folder).write_text(json.dumps(record))
    found = tables(runs)
    rows = {(row["other"], row["equal"]): row for row in found["controls"]}
    shared, isolated = "voting-math-grpo-shared", "voting-math-grpo-isolated"
    assert {key: (row["levels"], row["votes"]) for key, row in rows.items()} == {
        (shared, "training tokens"): ([0.5, 1.0], None),  # at 110 tokens of 100
        (shared, "calls of an answer"): ([0.5, 1.0], 4),
        (shared, "tokens of an answer"): ([0.0, 1.0], 3),
        (isolated, "training tokens"): ([0.0, 0.5], None),  # at 150 tokens of 120
    }
    budgets = {(row["one"], row["other"]): row for row in found["parity"]}
    assert {key: (row["tokens"], row["updates"], row["flags"]) for key, row in budgets.items()} == {
        (shared, isolated): ([100, 120], [2, 2], ["tokens"]),
        ("single-math-grpo", shared): ([110, 100], [2, 2], ["tokens"]),
        ("single-math-grpo", isolated): ([150, 120], [3, 2], ["tokens", "optimizer steps"]),
    }
    text = as_text(found)
    assert (
        f"| {shared} | single-math-grpo | training tokens | 1 | 100.0 % | 50.0 % | +50.0 |" in text
    )
    assert f"| single-math-grpo | {isolated} | 1 | 150 / 120 | 1.250 ! | 3.0 / 2.0 |" in text
    assert "NaN" not in json.dumps(finite_only(found))
    planned = plan_text(runs, control_jobs(runs), 2)
    assert "3 cells, 3 runs, 3 finished, 2 at a time." in planned
    assert "2 evaluations of controls at equal inference, 1 finished." in planned
    assert "1.250 !" in planned


# -- the time ----------------------------------------------------------------------------------


def test_the_time_left_is_that_of_like_runs(tmp_path):
    runs = training_jobs(matrix((0, 1)), tmp_path)
    assert remaining_seconds(runs, 2) is None, "nothing is known before the first step"
    finish(runs[0], [[0], [1]], [0, 10], {"shared": 1}, seconds=300.0)
    runs[0].state = "finished"
    # One run took 5 minutes; five others are like it, two at a time.
    assert remaining_seconds(runs, 2) == pytest.approx(750)
    runs[1].state = "running"
    runs[1].folder.mkdir(parents=True)
    (runs[1].folder / "metrics.jsonl").write_text('{"step": 1, "time/total": 150.0}\n')
    # A quarter of its 4 steps took 150 s. The four others: of its cell 600 s, the two controls the
    # mean of 450 s, of the first cell 300 s.
    assert remaining_seconds(runs, 1) == pytest.approx(450 + 600 + 2 * 450 + 300)
    assert remaining_seconds(runs, 9) == pytest.approx(600), "no less than the longest"
    for run in runs:
        run.state = "finished"
    assert remaining_seconds(runs, 1) == 0


def test_a_control_is_as_far_as_its_tokens_say(tmp_path):
    run = training_jobs(matrix(), tmp_path)[2]
    run.config = replace(run.config, token_budget=200)
    run.folder.mkdir(parents=True)
    (run.folder / "metrics.jsonl").write_text(
        '{"step": 9, "tokens/total": 50, "time/total": 30.0}\n'
    )
    assert remaining_seconds([run], 1) == pytest.approx(90)


def test_the_live_table_has_a_row_a_cell_and_the_time_that_is_left(tmp_path):
    runs = training_jobs(matrix((0, 1)), tmp_path)
    finish(runs[0], [[0], [1]], [0, 10], {"shared": 1}, seconds=300.0)
    runs[0].state = "finished"
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(run_table(runs, control_jobs(runs), 2))
    lines = console.export_text().splitlines()
    assert "1 of 6 runs finished, 0 of 4 votes, about 12 min left" in lines[0]
    assert sum("single-math-grpo" in line for line in lines) == 1
    assert any("done" in line and "in 5.0 min" in line for line in lines)


def test_durations_for_people():
    times = [as_time(seconds) for seconds in (5, 60, 3540, 3600, 9000)]
    assert times == ["less than a minute", "1 min", "59 min", "1 h 00 min", "2 h 30 min"]


BLOCK = {
    "name": "A", "title": "They forget", "role": "generator", "metric": "acc", "fall": 0.1,
    "called_by": ["fall"], "shows": ["bad"], "remedies": ["good"],
}  # fmt: skip
FAILURE_CELLS = [{"label": "bad"}, {"label": "good"}]


def one(**changes: Any) -> Any:
    block = {key: value for key, value in (BLOCK | changes).items() if value is not None}
    return read_matrix({"cells": FAILURE_CELLS, "failures": [block]}, "m", "here").failures[0]


def rows(*values: float | None) -> list[dict[str, float | None]]:
    return [{"acc": value} for value in values]


@pytest.mark.parametrize(
    ("changes", "values", "there", "since"),
    [
        ({}, (0.5, 0.6, 0.4), True, 2),
        ({}, (0.5, 0.6, 0.41), False, None),
        ({}, (0.5, 0.3, 0.6, 0.3, 0.2), True, 3),
        ({}, (0.5, 0.3), True, 1),
        ({"below": "best"}, (0.5, 0.6, 0.5), True, 2),
        ({"below": "best"}, (0.5, 0.6, 0.51), False, None),
        ({"fall": None, "at_most": 0.2}, (0.1, 0.9, 0.2, 0.1), True, 2),
        ({"fall": None, "at_most": 0.2}, (0.1, 0.1), True, 1),
        ({"fall": None, "at_most": 0.2}, (0.1, 0.21), False, None),
        ({"fall": None, "at_most": 0.2}, (0.6, None), None, None),
        ({"fall": None, "at_most": 0.2}, (None, 0.6, 0.1), True, 2),
        ({"below": "best"}, (None, 0.6, 0.4), True, 2),
        ({}, (None, 0.6, 0.4), None, None),
        ({"fall": None, "at_most": 0.2}, (0.6, float("nan")), None, None),
    ],
)
def test_a_failure_is_there_by_its_rule_and_since_it_stays(changes, values, there, since):
    failure = one(**changes)
    assert failure.there(rows(*values)) is there
    assert failure.since(rows(*values)) == since


def test_the_rule_is_said_in_words():
    assert (
        one().rule
        == "acc is 10 points or more lower at the last evaluation than it was before training"
    )
    assert one(below="best").rule.endswith("than at its best evaluation")
    assert one(fall=None, at_most=0.2).rule == "acc is 20 % or less at the last evaluation"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wrong": 1}, "unknown field of a failure in here 'wrong'"),
        ({"title": 3}, "`title` of a failure in here must be text, got 3"),
        ({"fall": None}, "needs either `at_most` or `fall`"),
        ({"at_most": 0.2}, "needs either `at_most` or `fall`"),
        ({"fall": 10}, "a number from 0 to 1"),
        ({"below": "peak"}, "unknown `below` of a failure in here 'peak'"),
        ({"remedies": ["goood"]}, "unknown cell in `remedies` .*'goood'. Did you mean 'good'"),
        ({"remedies": "good"}, "`remedies` of a failure in here must be a list of texts"),
    ],
)
def test_mistakes_in_a_failure_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        one(**changes)


def test_failures_must_be_blocks():
    with pytest.raises(UsageError, match=r"must be a list of blocks, got .* with \[\[failures\]\]"):
        read_matrix({"cells": FAILURE_CELLS, "failures": {"name": "A"}}, "m", "here")


def test_the_failures_of_the_zoo_have_all_of_its_cells_and_survive_their_file():
    zoo = load_matrix("zoo")
    cells = {(name, label) for failure in zoo.failures for name, label, _ in failure.cells}
    assert cells == {(cell.name, cell.label) for cell in zoo.cells}
    for failure in zoo.failures:
        parts = [part for _, _, part in failure.cells]
        assert {"shows", "remedies"} <= set(parts) <= set(PARTS)
        assert parts == sorted(parts, key=PARTS.index)
    assert from_record(json.loads(json.dumps(as_record(zoo.failures)))) == list(zoo.failures)


def test_a_record_of_other_relations_is_refused():
    (row,) = as_record([one()])
    old = row | {"cells": [[name, label, "mends"] for name, label, _ in row["cells"]]}
    with pytest.raises(UsageError, match="unknown relation of a cell 'mends'"):
        from_record([old])
