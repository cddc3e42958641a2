"""The rules behind shown, not shown and undecided, on planted matrices."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowzoo.baselines.report.cells import CellData
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.stats import at_least
from studies.paper.amplification import CellAmplification, cell_amplification
from studies.paper.claims import (
    amplification_claim,
    capture_claim,
    cliff_claim,
    interval_verdict,
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
from studies.paper.sharing import claimable_pairs

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


@pytest.mark.full
def test_the_peak_claim_errs_as_rarely_as_its_level_says():
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(400):
        pairs: list[tuple[BootstrapSample, BootstrapSample]] = []
        items = rng.normal(0, 0.35, (4, 2, 100))  # what a problem adds for one kind of sharing
        draws = rng.integers(100, size=(200, 100))
        for pair in items:
            sides: list[BootstrapSample] = []
            for side in pair:
                scores = side + rng.normal(0, 0.02, (3, 1)) + rng.normal(0, 0.35, (3, 100))
                sides.append(BootstrapSample(scores.mean(axis=1), scores[:, draws].mean(axis=2)))
            pairs.append((sides[0], sides[1]))
        found = mean_difference(pairs)
        wrong += interval_verdict(found.low, found.high) != "undecided"
    assert wrong <= 32  # 20 are expected at 5 %; more than 32 would be 1 in 200


def test_an_interval_over_seeds_is_welchs_where_problems_add_nothing():
    one = BootstrapSample(np.array([1.0, 2.0, 3.0]), np.zeros((3, 4)))
    two = BootstrapSample(np.array([4.0, 5.0, 6.0]), np.zeros((3, 4)))
    found = mean_difference([(one, two)])
    half = 2.776 * (2 / 3) ** 0.5  # t with 4 degrees of freedom
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-3)
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
