"""The rules behind shown, not shown and undecided, on planted matrices."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.diagnostics.capture import find_captures
from flowzoo.baselines.report.cells import CellData, group_cells
from flowzoo.baselines.report.comparisons import against_controls
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import at_least
from studies.paper.__main__ import main, study_page
from studies.paper.claims import (
    CellAmplification,
    amplification_claim,
    capture_claim,
    cell_amplification,
    cliff_claim,
    paper_claims,
    peak_claim,
)
from studies.paper.estimates import (
    BootstrapSample,
    DetectionCounts,
    exact_p,
    least_findable,
    mean_difference,
    upper_bound,
)
from studies.paper.sharing import claimable_pairs, sharing_finding, sharing_rows
from studies.paper.team_map import EQUAL, team_findings, team_lines, team_map
from studies.truth.simulation import (
    course,
    simulate,
    simulate_capture,
    simulate_gram,
    simulate_seeds,
)

ITEMS = 200
RISING = (0.4, 0.5, 0.6, 0.65, 0.65, 0.65, 0.65)
HIGHER = (0.4, 0.6, 0.7, 0.78, 0.78, 0.78, 0.78)


def run_of(name: str, scores: Any, **settings: Any) -> RunData:
    rows = [
        {"step": 8 * place, "eval/scores": list(map(float, level))}
        for place, level in enumerate(scores)
    ]
    summary = {"protocol": {"problem_set": "planted"}}
    return RunData(Path(name), name, settings, {}, {}, rows, summary)


def cell_of(
    workflow: str, sharing: str, course: Sequence[float], *, seeds: int = 3, noise: int = 0
) -> CellData:
    """A cell of runs with this expected course; all runs of a test see the same problems."""
    difficulty = np.random.default_rng(7).standard_normal((1, ITEMS))
    level = np.array(course)
    odds = 1.18 * np.log(level / (1 - level))[:, None] + difficulty
    settings = {"workflow": workflow, "task": "math", "sharing": [sharing]}
    runs: list[RunData] = []
    for seed in range(seeds):
        rng = np.random.default_rng([noise, seed, len(workflow), len(sharing)])
        scores = rng.random(odds.shape) < 1 / (1 + np.exp(-odds))
        runs.append(run_of(f"{workflow}-{sharing}/seed-{seed}", scores, seed=seed, **settings))
    return CellData(f"{workflow}-{sharing}", settings, runs, [], "math")


def planted(shared: Sequence[float], isolated: Sequence[float], **options: Any) -> list[CellData]:
    """Four workflows, each with shared and with isolated policies."""
    return [
        cell_of(workflow, sharing, course, **options)
        for workflow in ("a", "bb", "ccc", "dddd")
        for sharing, course in (("shared", shared), ("isolated", isolated))
    ]


def notes_of(cells: Sequence[CellData], fallen: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Facts of runs; `fallen` is how many runs of each cell are cliffs."""
    return {
        run.name: {
            "cliff": {"verdict": "cliff" if seed < fallen.get(cell.name, 0) else "no cliff"},
            "captures": [],
        }
        for cell in cells
        for seed, run in enumerate(cell.runs)
    }


def test_higher_peaks_are_shown_and_lower_ones_not():
    cells = planted(RISING, HIGHER)
    claim = peak_claim(claimable_pairs(cells))
    assert claim.verdict == "shown"
    assert "4 pairs of cells, 12 and 12 runs" in claim.evidence
    assert peak_claim(claimable_pairs(planted(HIGHER, RISING))).verdict == "not shown"
    assert peak_claim(claimable_pairs(planted(RISING, RISING))).verdict == "undecided"


def test_pairs_that_are_too_small_or_unlike_are_left_out():
    assert claimable_pairs(planted(RISING, HIGHER, seeds=2)) == []
    assert claimable_pairs(planted(RISING[:4], HIGHER[:4])) == []
    cells = planted(RISING, HIGHER)[:2]
    other = [run_of(run.name, run.scores[:, :100], **run.settings) for run in cells[1].runs]
    assert claimable_pairs([cells[0], CellData("x", cells[1].settings, other, [], "math")]) == []
    assert peak_claim([]).verdict == "undecided"
    assert cliff_claim([], {}).verdict == "undecided"


def test_an_interval_over_seeds_is_welchs_where_problems_add_nothing():
    one = BootstrapSample(np.array([1.0, 2.0, 3.0]), np.zeros((3, 4)))
    two = BootstrapSample(np.array([4.0, 5.0, 6.0]), np.zeros((3, 4)))
    found = mean_difference([(one, two)])
    half = 2.776 * (2 / 3) ** 0.5  # t with 4 degrees of freedom
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-3)
    noisy = BootstrapSample(two.values, np.tile([0.0, 2.0], (3, 2)))  # variance of problems: 4/3
    wide = mean_difference([(one, noisy)])
    assert wide.high - wide.mean == pytest.approx(2.028 * 2**0.5, abs=2e-3)  # 36 degrees of freedom
    single = BootstrapSample(np.ones(1), np.zeros((1, 4)))
    assert math.isinf(mean_difference([(one, single)]).high)


def test_cliffs_are_counted_pair_by_pair():
    cells = planted(RISING, RISING)
    pairs = claimable_pairs(cells)
    isolated = [cell.name for cell in cells if "isolated" in cell.name]
    claim = cliff_claim(pairs, notes_of(cells, dict.fromkeys(isolated, 2)))
    assert claim.verdict == "shown"
    assert "8 of 12 isolated and 0 of 12 shared runs" in claim.evidence
    few = cliff_claim(pairs, notes_of(cells, dict.fromkeys(isolated, 1)))
    assert few.verdict == "undecided"
    assert "5 of 12 would have been needed" in few.evidence
    shared = [cell.name for cell in cells if "shared" in cell.name]
    assert cliff_claim(pairs, notes_of(cells, dict.fromkeys(shared, 3))).verdict == "not shown"


def test_the_exact_test_is_fishers_within_a_pair():
    # 3 of 3 against 0 of 3: 1 / C(6, 3); two such pairs: its square.
    stratum = DetectionCounts((0, 3), (3, 3))
    assert exact_p([stratum])[0] == pytest.approx(1 / 20)
    assert exact_p([stratum, stratum])[0] == pytest.approx(1 / 400)
    assert exact_p([DetectionCounts((0, 0), (3, 3))]) == pytest.approx((1.0, 1.0))
    assert exact_p([DetectionCounts((1, 1), (3, 3))])[0] == pytest.approx(0.8)


def test_the_least_difference_that_could_be_told():
    assert least_findable([(3, 3)]) is None
    found = least_findable([(3, 3)] * 6)
    assert found == 6  # one in every pair: 1 / 64
    assert 0.5**6 <= 0.025 < 0.5**5


def test_bounds_of_rates_are_clopper_and_pearsons():
    assert upper_bound(0, 18) == pytest.approx(1 - 0.05 ** (1 / 18), abs=1e-6)
    assert upper_bound(3, 3) == 1.0
    assert at_least(4, 18, upper_bound(3, 18)) == pytest.approx(0.95, abs=1e-6)


def voters(cosine: float, snr: float, slots: int = 3, seed: int = 0) -> dict[str, Any]:
    """A probe's metrics of slots whose expected gradients have this cosine to each other."""
    rng = np.random.default_rng(seed)
    wanted = (1 - cosine) * np.eye(slots) + cosine + 1e-9 * np.eye(slots)
    means = np.linalg.cholesky(wanted) @ np.eye(slots, 400)
    noise = rng.normal(0, 1 / snr / 20, (slots, 8, 400))
    gradients = (means[:, None] + noise).reshape(-1, 400)
    gram = (gradients @ gradients.T).reshape(slots, 8, slots, 8)
    return {"slots": slots, "blocks": 8, "products": gram.tolist(), "applied": None}


def probed(cosine: float, snr: float) -> list[CellAmplification]:
    cells: list[CellData] = []
    for place, cell in enumerate(planted(RISING, RISING)[:4]):
        runs: list[RunData] = []
        for number, run in enumerate(cell.runs):
            grams: list[dict[str, Any]] = []
            for step in range(1, 5):
                gram = voters(cosine, snr, seed=97 * place + 9 * number + step)
                grams.append({"step": 10 * step, "gram/voter/p": gram})
            runs.append(RunData(run.folder, run.name, run.settings, {}, {}, grams, run.summary))
        cells.append(CellData(cell.name, cell.settings, runs, [], "math"))
    return cell_amplification(cells)


def test_aligned_voters_are_amplified_and_orthogonal_ones_not():
    aligned = amplification_claim(probed(1.0, 1.0), applied=False)
    assert aligned.verdict == "shown"
    assert "4 are amplified" in aligned.evidence
    assert amplification_claim(probed(-0.4, 1.0), applied=False).verdict == "not shown"
    assert amplification_claim(probed(0.0, 1.0), applied=False).verdict == "undecided"
    assert amplification_claim(probed(1.0, 0.02), applied=False).verdict == "undecided"
    assert amplification_claim(probed(1.0, 1.0), applied=True).verdict == "undecided"


def test_one_role_below_orthogonal_leaves_the_claim_open():
    one = CellAmplification("c", "voter", False, 3, 2.9, 2.7, 3.1, 1.6, 1.5, 1.7, 2.8, 2.8, 12)
    low = one._replace(value=1.2, low=1.1, high=1.5, over=0.7, over_low=0.6, over_high=0.8)
    wide = one._replace(low=0.0, high=math.inf, over_low=0.0, over_high=math.inf)
    assert amplification_claim([one, one, wide], applied=False).verdict == "shown"
    assert amplification_claim([one, one, low], applied=False).verdict == "undecided"
    assert amplification_claim([one, wide], applied=False).verdict == "undecided"
    assert "unbounded" in amplification_claim([wide], applied=False).evidence


def caught(cells: Sequence[CellData], by: Sequence[str | None]) -> dict[str, dict[str, Any]]:
    """Facts of runs in which role `by[place of the cell]` captured another; `a` has most mass."""
    notes = notes_of(cells, {})
    for cell, role in zip(cells, by, strict=True):
        for run in cell.runs:
            pairs = [
                {"by": one, "of": two, "captured": one == role, "dominant": one == role}
                for one, two in (("a", "b"), ("b", "a"))
            ]
            notes[run.name]["captures"] = [{"roles": ["a", "b"], "top": "a", "pairs": pairs}]
    return notes


def test_capture_is_shown_by_the_heaviest_role_in_half_of_the_cells():
    cells = [cell for cell in planted(RISING, RISING) if "shared" in cell.name]
    shown = capture_claim(cells, caught(cells, ["a", "a", None, None]))
    assert shown.verdict == "shown"
    assert "6 of 12 tested runs, another role did in 0" in shown.evidence
    by_light = capture_claim(cells, caught(cells, ["b", "b", "b", None]))
    assert "in 0 of 12 tested runs, another role did in 9" in by_light.evidence
    assert by_light.verdict == "undecided"  # 0 of 4 cells leave up to 52.7 % possible
    six = [
        *cells,
        *(CellData(f"x{n}", one.settings, one.runs, [], "math") for n, one in enumerate(cells[:2])),
    ]
    assert capture_claim(six, caught(six, [None] * 6)).verdict == "not shown"


def test_capture_that_was_not_tested_is_undecided():
    cells = planted(RISING, RISING)
    assert capture_claim(cells, notes_of(cells, {})).verdict == "undecided"


def test_every_claim_prints_its_rule_and_its_uncertainty():
    cells = planted(RISING, HIGHER)
    notes = notes_of(cells, {})
    claims = paper_claims(claimable_pairs(cells), cells, notes, [])
    assert [one.name for one in claims] == ["peak", "cliff", "amplification", "applied", "capture"]
    assert all(one.rule and one.evidence for one in claims)
    assert [one.verdict for one in claims] == ["shown", *["undecided"] * 4]


# -- The planted truths are what they say ----------------------------------------------------------


@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
def test_scores_have_the_expected_accuracy(spread):
    wanted = np.array([0.1, 0.5, 0.6, 0.95])
    rng = np.random.default_rng(0)
    found = np.mean([simulate(wanted, 500, rng, spread=spread) for _ in range(200)], axis=(0, 2))
    error = np.sqrt(wanted * (1 - wanted) / 100_000)
    assert np.all(np.abs(found - wanted) < 4 * error)


def test_seeds_share_the_difficulty_of_their_items():
    one, two = simulate_seeds([np.full(60, 0.5)] * 2, 300, np.random.default_rng(1))
    assert np.corrcoef(one.mean(axis=0), two.mean(axis=0))[0, 1] > 0.7


def test_course_rises_stays_and_falls():
    found = course(0.1, 20)
    assert found.shape == (20,)
    assert found[0] == pytest.approx(0.4)
    assert found[9:15] == pytest.approx(np.full(6, 0.6))
    assert found[15:] == pytest.approx(np.full(5, 0.5))


def test_gram_has_the_expected_products_and_noise():
    means = np.array([[1.0, 0.0], [0.5, 0.5]])
    rng = np.random.default_rng(2)
    grams = [simulate_gram(means, 0.5, 4, rng) for _ in range(400)]
    mean = np.mean(grams, axis=0)
    assert mean[:, 0, :, 1] == pytest.approx(means @ means.T, abs=0.1)
    whole = mean.sum(axis=(1, 3)) / 16
    assert np.diagonal(whole) == pytest.approx(np.array([1.25, 0.75]), abs=0.05)


@pytest.mark.parametrize(
    ("excess", "moved", "captured"),
    [(0.25, 0.8, True), (0.25, 0.0, False), (0.0, 0.8, False), (0.0, 0.0, False)],
)
def test_capture_is_found_where_both_halves_were_planted(excess, moved, captured):
    """Twenty runs of each kind; voters have 0.63 of the mass from noise alone."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        run = simulate_capture(excess, moved, rng)
        found = {(one.by, one.of): one for one in find_captures(*run, draws=200)}
        assert found["generator", "aggregator"].captured == captured
        assert not found["aggregator", "generator"].captured


# -- Comparisons of shared and isolated policies, where a team pays, and the page of the study -----


SHARING = pytest.mark.xdist_group("report-matrix")  # they share runs


def without(runs: list[RunData], name: str) -> list[RunData]:
    return [run for run in runs if run.name != name]


def shared_rows(runs: list[RunData]) -> list[dict[str, Any]]:
    cells = group_cells(runs)
    return sharing_rows(cells, claimable_pairs(cells), {})


@SHARING
def test_two_seeds_allow_no_claim(matrix_runs):
    pair = shared_rows(without(matrix_runs, "voting-shared/seed-2"))[0]
    assert pair["claim"] == "no claim: 2 and 3 seeds, fewer than 3"
    finding = sharing_finding([pair])
    assert finding.title == "Shared against isolated: too few seeds for a claim"


@SHARING
def test_three_seeds_allow_a_claim_about_seeds(matrix_runs):
    pair = shared_rows(matrix_runs)[0]
    assert (pair["one"], pair["other"]) == ("voting-shared", "voting-isolated")
    assert pair["claim"] == "lower"
    assert pair["seed_high"] < 0
    assert pair["high"] < 0


@SHARING
def test_cells_that_differ_in_more_than_sharing_are_not_compared(matrix_runs):
    changed = [
        replace(run, settings={**run.settings, "lr": 0.5}) if "isolated" in run.name else run
        for run in matrix_runs
    ]
    assert shared_rows(changed) == []


@SHARING
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


@SHARING
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


@SHARING
def test_a_team_is_undecided_where_its_control_had_too_few_tokens(matrix_runs):
    teams = team_map(against_controls(group_cells(matrix_runs)))
    assert [team["verdict"] for team in teams] == ["undecided", "undecided"]


@SHARING
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
