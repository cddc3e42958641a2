import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.matrix.failures import FILE, FailureMode, as_record
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.report.cells import cell_facts, group_cells, mark_discoveries, same_problems
from flowzoo.baselines.report.comparisons import Side, against_controls, difference
from flowzoo.baselines.report.failures import check_codes, failure_facts, read_failure_modes
from flowzoo.baselines.report.matrix_facts import matrix_facts
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import CODES, run_facts
from flowzoo.baselines.report.write import write_report
from flowzoo.baselines.run.reading import RunData
from flowzoo.errors import DataError, UsageError

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


MakeRun = Callable[..., Path]
FALLING = (0.45, 0.60, 0.70, 0.70, 0.50, 0.30, 0.30, 0.30)


def mode(**changes: Any) -> FailureMode:
    fields: dict[str, Any] = {
        "name": "A", "title": "They forget", "role": "generator", "metric": "eval/reward/mean",
        "called_by": ("fall",), "fall": 0.1, "below": "best",
        "cells": (("bad", "they", "shows"), ("good", "", "remedies"), ("absent", "x", "remedies")),
    }  # fmt: skip
    return FailureMode(**(fields | changes))


@pytest.fixture(scope="module")
def root(make_run: MakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds that fall, and two that stay."""
    folder = tmp_path_factory.mktemp("failures")
    for seed in range(2):
        make_run(folder / "bad" / f"seed-{seed}", seed=seed, course=FALLING)
        make_run(folder / "good" / f"seed-{seed}", seed=seed, sharing=("isolated",))
    return folder


def test_failures_are_counted_beside_their_remedies_with_the_moment(root):
    runs = read_runs([root])
    notes = {run.name: run_facts(run) for run in runs}
    fact = failure_facts([mode()], group_cells(runs), notes)[0]
    rows = {row["cell"]: row for row in fact["cells"]}
    assert list(rows) == ["bad", "good"]  # the third has no run
    assert (rows["bad"]["label"], rows["bad"]["part"]) == ("they", "shows")
    assert (rows["bad"]["there"], rows["bad"]["called"], rows["bad"]["clean"]) == (
        [0, 1],
        [0, 1],
        [],
    )
    assert (rows["good"]["there"], rows["good"]["called"], rows["good"]["clean"]) == (
        [],
        [],
        [0, 1],
    )
    moment = fact["moment"]
    assert moment["run"] == "bad/seed-0"
    assert moment["steps"] == [30, 40]
    assert moment["before"]["score"] == 1 > moment["after"]["score"]
    scores = [[call["role_score"] for call in moment[side]["calls"] if call["role"] == "generator"]
              for side in ("before", "after")]  # fmt: skip
    assert scores == [[1.0] * 3, [0.0] * 3]


def test_what_is_called_elsewhere_or_cannot_be_told_is_not_clean(root):
    runs = read_runs([root])
    notes = {
        run.name: {"codes": [("generator", "lost skill"), ("verifier", "fall")]} for run in runs
    }
    cells = group_cells(runs)
    skill = mode(called_by=("lost skill",), fall=0.9)
    row = failure_facts([skill], cells, notes)[0]["cells"][0]
    assert (row["there"], row["called"], row["clean"]) == ([], [0, 1], [])
    other = mode(role="aggregator", called_by=("lost skill", "fall"))
    assert failure_facts([other], cells, notes)[0]["cells"][0]["called"] == []
    unknown = mode(metric="eval/share/evaluator_tpr")
    row = failure_facts([unknown], cells, notes)[0]["cells"][0]
    assert (row["untold"], row["clean"]) == ([0, 1], [])


def test_only_codes_of_findings_may_call_a_failure():
    check_codes(load_matrix("zoo").failures, "zoo")
    message = "unknown finding in `called_by` .*'falls'. Did you mean 'fall'"
    with pytest.raises(UsageError, match=message):
        check_codes([mode(called_by=("falls",))], "here")


def test_every_code_of_a_run_is_declared(root):
    codes = {code for run in read_runs([root]) for _, code in run_facts(run)["codes"]}
    assert "fall" in codes
    assert codes <= set(CODES)


def test_the_page_of_a_matrix_has_what_its_file_says(root, tmp_path):
    (root / FILE).write_text(json.dumps(as_record([mode(title="<b>They</b> forget")])))
    assert [one.name for one in read_failure_modes([root, tmp_path])] == ["A"]
    page = write_report([root], tmp_path / "page.html", overview=True)[0].read_text()
    counts = "failures are present 2 times (A 2), and the pages of these runs call them 2 times"
    assert counts in page
    assert "Of 1 remedies 1 are clean of their own failure" in page
    assert "\\u003cb\\u003eThey\\u003c/b\\u003e forget" in page
    (root / FILE).write_text('[{"name": "A"}]')
    with pytest.raises(DataError, match=r"failures\.json is not a file of `flowzoo matrix`"):
        read_failure_modes([root])


def test_a_cell_that_mends_two_failures_is_one_remedy(root, tmp_path):
    modes = [mode(), mode(name="A, from the start", below="start")]
    (root / FILE).write_text(json.dumps(as_record(modes)))
    page = write_report([root], tmp_path / "page.html", overview=True)[0].read_text()
    assert "Of 1 remedies 1 are clean of their own failure" in page
