import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.matrix.failures import FILE, FailureMode, as_record
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.report.cells import group_cells
from flowzoo.baselines.report.failures import check_codes, failure_facts, read_failure_modes
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import CODES, run_facts
from flowzoo.baselines.report.write import write_report
from flowzoo.errors import DataError, UsageError

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
