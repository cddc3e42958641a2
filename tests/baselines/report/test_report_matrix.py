import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flowzoo.baselines.report.cells import cell_facts, group_cells, mark_discoveries, same_problems
from flowzoo.baselines.report.comparisons import Side, against_controls, difference
from flowzoo.baselines.report.matrix_facts import matrix_facts
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData
from flowzoo.errors import DataError

pytestmark = pytest.mark.xdist_group("report-matrix")  # they share runs


def test_seeds_of_one_configuration_are_one_cell(matrix_runs):
    cells = group_cells(matrix_runs)
    assert [(cell.name, cell.seeds) for cell in cells] == [
        ("single", [0, 1, 2]),
        ("voting-isolated", [0, 1, 2]),
        ("voting-shared", [0, 1, 2]),
    ]


def test_an_unfinished_run_counts_nowhere(matrix_runs):
    changed = [
        replace(run, summary=None) if run.name == "single/seed-1" else run for run in matrix_runs
    ]
    cell = group_cells(changed)[0]
    assert (cell.seeds, len(cell.unfinished)) == ([0, 2], 1)
    titles = [one["title"] for one in matrix_facts(changed, pages(changed), {})["findings"]]
    assert "The matrix is not complete" in titles


def pages(runs: list[RunData]) -> dict[str, str]:
    return {run.name: f"{run.name}.html" for run in runs}


def test_a_cell_has_its_gain_over_items_and_over_seeds(matrix_runs):
    facts = cell_facts(group_cells(matrix_runs)[2], {})
    gains = [run.scores[-1].mean() - run.scores[0].mean() for run in matrix_runs[6:]]
    assert facts["gain"]["mean"] == pytest.approx(np.mean(gains))
    assert facts["gain_seeds"]["values"] == pytest.approx(gains)
    assert facts["gain"]["low"] > 0
    assert (facts["items"], facts["cliff"]["seeds"]) == (150, 3)


def test_a_cliff_is_marked_where_it_survives_the_other_cells(matrix_runs):
    facts = [cell_facts(cell, {}) for cell in group_cells(matrix_runs)]
    assert mark_discoveries(facts) == 3
    kept = {fact["name"]: fact["cliff"]["discovery"] for fact in facts}
    assert kept == {"single": False, "voting-isolated": True, "voting-shared": False}


def test_a_weak_cliff_does_not_survive_many_cells():
    weak = {"cliff": {"verdict": "cliff", "p_value": 0.02}}
    others = [{"cliff": {"verdict": "no cliff", "p_value": 0.5}} for _ in range(9)]
    untold = {"cliff": {"verdict": "not enough items", "p_value": 0.0001}}
    assert mark_discoveries([weak, *others, untold]) == 10
    assert weak["cliff"]["discovery"] is False
    assert "discovery" not in untold["cliff"]


def test_a_workflow_stands_beside_its_control_with_both_costs(matrix_runs):
    found = against_controls(group_cells(matrix_runs))
    assert [(row["one"], row["other"]) for row in found] == [
        ("single", "voting-isolated"),
        ("single", "voting-shared"),
    ]
    assert found[1]["mean"] > 0.2
    assert (found[1]["paired"], found[1]["items"]) == (True, 150)
    assert [row["equal"] for row in found] == ["nothing", "nothing"]  # the control had too few
    facts = matrix_facts(matrix_runs, pages(matrix_runs), {})
    budgets = [(row["one"], row["other"]) for row in facts["budgets"]]
    assert budgets == [
        ("voting-shared", "voting-isolated"),
        ("single", "voting-isolated"),
        ("single", "voting-shared"),
    ]
    assert found[1]["parity"]["tokens"] == [900 * 50, 900 * 70]


def test_other_problems_are_not_paired(matrix_runs, make_run, tmp_path):
    other = read_runs([make_run(tmp_path / "code", task="code", items=150)])[0]
    one, two = group_cells(matrix_runs)[2], group_cells([other])[0]
    assert not same_problems(one, two)
    found = difference(Side("a", [np.ones(9)]), Side("b", [np.zeros(7)]), paired=True)
    assert (found["paired"], found["low"]) == (False, None)


def test_capture_of_a_cell_counts_runs(make_run, tmp_path):
    for seed in range(2):
        plan = {"items": 60, "gradients": True, "captured": seed == 0, "seed": seed}
        make_run(tmp_path / "cell" / f"seed-{seed}", **plan)
    runs = read_runs([tmp_path])
    facts = matrix_facts(runs, pages(runs), {run.name: run_facts(run) for run in runs})
    pairs = facts["cells"][0]["captures"]
    assert {"by": "generator", "of": "aggregator", "captured": 1, "tested": 2} in pairs
    text = next(f["text"] for f in facts["findings"] if f["title"] == "Captured roles")
    assert "in 1 of 2 runs" in text
    assert "without control over pairs" in text


def test_a_control_is_compared_at_its_first_evaluation_with_the_tokens(make_run, tmp_path):
    make_run(tmp_path / "voting" / "seed-0", items=40, course=(0.3, 0.4, 0.5))
    single = {"workflow": "single", "items": 40, "seed": 0, "course": (0.3, 0.4, 0.5, 0.6, 0.7)}
    folder = make_run(tmp_path / "single" / "seed-0", **single)
    record = {
        "workflow": {"run": "voting--seed-0"},
        "votes": {"calls": {"k": 4, "scores": [1.0] * 40}},
    }
    (folder / "like-voting--seed-0.json").write_text(json.dumps(record))
    runs = read_runs([tmp_path])
    found = against_controls(group_cells(runs))
    assert [row["equal"] for row in found] == ["training tokens", "calls of an answer"]
    single_scores = runs[0].scores
    assert found[0]["levels"][0] == pytest.approx(single_scores[2].mean())
    assert found[0]["parity"]["tokens"] == [900 * 20, 900 * 20]
    assert found[0]["parity"]["updates"] == [20, 20]
    assert found[0]["parity"]["flags"] == []
    assert (found[1]["levels"][0], found[1]["votes"]) == (1.0, 4)
    assert found[1]["claim"] == "no claim: 1 and 1 seeds, fewer than 3"
    (folder / "like-voting--seed-0.json").write_text('{"votes": 3}')
    with pytest.raises(DataError, match=r"like-voting--seed-0\.json is not a record of a control"):
        against_controls(group_cells(runs))


def test_controls_whose_budgets_differ_by_seed_are_one_cell(matrix_runs):
    changed = [with_budget(run, 900 + number) for number, run in enumerate(matrix_runs[:3])]
    assert [cell.seeds for cell in group_cells(changed)] == [[0, 1, 2]]


def with_budget(run: RunData, tokens: int) -> RunData:
    return replace(run, settings={**run.settings, "token_budget": tokens})


@pytest.mark.parametrize("start", [0, 6], ids=["controls", "workflows"])
def test_labeled_cells_that_differ_in_the_budget_alone_stay_two(matrix_runs, start):
    some = [with_budget(run, 900) for run in matrix_runs[start : start + 3]]
    others = [
        replace(with_budget(run, 1800), name=f"long/seed-{seed}", folder=Path(f"long/seed-{seed}"))
        for seed, run in enumerate(some)
    ]
    assert [cell.seeds for cell in group_cells([*some, *others])] == [[0, 1, 2]] * 2


def test_cells_without_a_verdict_say_why(matrix_runs):
    late = [{**row, "step": row["step"] + 1} for row in matrix_runs[3].rows]
    changed = [replace(run, rows=late) if run is matrix_runs[3] else run for run in matrix_runs]
    assert cliffs(changed).endswith(
        "No verdict for 1 cell: the seeds were evaluated at different steps or on different "
        "numbers of items."
    )
    nothing = [replace(run, summary=None) if run in matrix_runs[:3] else run for run in changed[:6]]
    assert cliffs(nothing) == (
        "No verdict for 2 cells: no finished run; the seeds were evaluated at different steps or "
        "on different numbers of items."
    )


def cliffs(runs: list[RunData]) -> str:
    findings = matrix_facts(runs, pages(runs), {})["findings"]
    return next(one["text"] for one in findings if "cliff" in one["title"].lower())
