"""Comparisons of shared and isolated policies, where a team pays, and the page of the study."""

from dataclasses import replace
from typing import Any

import pytest

from flowzoo.baselines.report.cells import group_cells
from flowzoo.baselines.report.comparisons import against_controls
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData
from studies.paper.__main__ import main, study_page
from studies.paper.sharing import claimable_pairs, sharing_finding, sharing_rows
from studies.paper.team_map import EQUAL, team_findings, team_lines, team_map

pytestmark = pytest.mark.xdist_group("report-matrix")  # they share runs


def without(runs: list[RunData], name: str) -> list[RunData]:
    return [run for run in runs if run.name != name]


def shared_rows(runs: list[RunData]) -> list[dict[str, Any]]:
    cells = group_cells(runs)
    return sharing_rows(cells, claimable_pairs(cells), {})


def test_two_seeds_allow_no_claim(matrix_runs):
    pair = shared_rows(without(matrix_runs, "voting-shared/seed-2"))[0]
    assert pair["claim"] == "no claim: 2 and 3 seeds, fewer than 3"
    finding = sharing_finding([pair])
    assert finding.title == "Shared against isolated: too few seeds for a claim"


def test_three_seeds_allow_a_claim_about_seeds(matrix_runs):
    pair = shared_rows(matrix_runs)[0]
    assert (pair["one"], pair["other"]) == ("voting-shared", "voting-isolated")
    assert pair["claim"] == "lower"
    assert pair["seed_high"] < 0
    assert pair["high"] < 0


def test_cells_that_differ_in_more_than_sharing_are_not_compared(matrix_runs):
    changed = [
        replace(run, settings={**run.settings, "lr": 0.5}) if "isolated" in run.name else run
        for run in matrix_runs
    ]
    assert shared_rows(changed) == []


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        (("higher", "higher", "higher"), "pays"),
        (("cannot be told apart", "lower", "lower"), "does not"),
        (("higher", "lower", "higher"), "mixed"),
        (("higher", "cannot be told apart", "higher"), "mixed"),
        (("cannot be told apart",) * 3, "undecided"),
        (("higher", "higher"), "undecided"),
        (("lower", "lower", "no claim: 2 and 2 seeds, fewer than 3"), "undecided"),
    ],
)
def test_a_team_pays_where_it_is_better_whatever_is_made_equal(claims, verdict):
    low, high = {"pays": (0.1, 0.3), "does not": (-0.3, -0.1)}.get(verdict, (-0.1, 0.1))
    rows = [
        {
            "other": "team", "one": "single", "equal": equal, "claim": claim,
            "mean": (low + high) / 2, "seed_low": low, "seed_high": high,
        }
        for equal, claim in zip(EQUAL, claims, strict=False)
    ]  # fmt: skip
    [cell] = team_map([*rows])
    assert (cell["cell"], cell["control"], cell["verdict"]) == ("team", "single", verdict)
    assert team_lines([cell])[-1].endswith(f" | {verdict} |")
    [finding] = team_findings([cell])
    assert "1 cell" in finding.text
    assert "team" in finding.text


def test_sharing_that_is_left_out_is_told_by_the_algorithm(matrix_runs):
    changed = [
        replace(run, settings={**run.settings, "algorithm": "magrpo"}) for run in matrix_runs[3:]
    ]
    changed[:3] = [replace(run, settings={**run.settings, "sharing": []}) for run in changed[:3]]
    assert [cell.axis("sharing") for cell in group_cells(changed)] == ["isolated", "shared"]
    assert [row["other"] for row in shared_rows(changed)] == ["voting-isolated"]
    page = run_facts(changed[0])
    assert page["sharing"] == ["isolated"]


@pytest.mark.full
def test_a_matrix_has_its_claims_and_the_table_of_sharing(matrix_runs):
    facts = study_page(matrix_runs, [])["study"]
    verdicts = {claim["name"]: claim["verdict"] for claim in facts["claims"]}
    assert set(verdicts) == {"peak", "cliff", "amplification", "applied", "capture"}
    # One pair of cells, three seeds each: even 3 of 3 cliffs against none is p = 0.1.
    assert verdicts["cliff"] == "undecided"
    assert verdicts["amplification"] == "shown"
    row = facts["sharing"][0]
    assert row["cliffs"] == [[0, 3], [3, 3]]
    assert row["captures"] == [0, 3]
    assert row["peak"]["low"] < row["peak"]["mean"] < row["peak"]["high"]
    assert row["parity"]["ratios"] == [1.0, 1.0]


def test_a_team_is_undecided_where_its_control_had_too_few_tokens(matrix_runs):
    teams = team_map(against_controls(group_cells(matrix_runs)))
    assert [team["verdict"] for team in teams] == ["undecided", "undecided"]


def test_the_page_prints_every_claim_with_its_rule(browser, make_run, tmp_path, monkeypatch):
    for sharing in ("shared", "isolated"):
        make_run(tmp_path / "runs" / sharing / "seed-0", items=40, sharing=(sharing,))
    make_run(tmp_path / "runs" / "single" / "seed-0", items=40, workflow="single")
    page = tmp_path / "page.html"
    command = ["studies.paper", str(tmp_path / "runs"), "--out", str(page)]
    monkeypatch.setattr("sys.argv", command)
    main()
    browser.get(page.as_uri())
    browser.get_log("browser")
    read = "return [...document.querySelectorAll('#claims article')].map((one) => one.innerText)"
    claims = browser.execute_script(read)
    assert len(claims) == 5
    assert all("Rule: " in claim for claim in claims)
    # One seed on each side and no probes: nothing can be claimed.
    assert all(claim.startswith("undecided") for claim in claims)
    headings = "return [...document.querySelectorAll('h2')].map((one) => one.textContent)"
    assert {"Where a team pays", "Shared against isolated policies", "Budgets"} <= {
        *browser.execute_script(headings)
    }
    assert browser.get_log("browser") == []
