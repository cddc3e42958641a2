"""Verdicts of a matrix on the claims of arXiv 2605.24202: shown, not shown, or undecided.

The rules were fixed before the runs that they judge, and every verdict prints its rule:

* `peak`: isolated policies reach higher peaks. Shown if the 95 % interval of the mean difference of
  cross-fitted peaks, isolated minus shared, lies above 0; not shown if below; else undecided.
* `cliff`: isolated policies fall off cliffs more. Runs that fell are counted on both sides;
  shown if isolated ones are more by Fisher's exact test stratified by pair (two-sided, 5 %), not
  shown if fewer; else undecided, with the smallest difference that could have been told.
* `amplification`: parallel agents of one role amplify its gradient. A role of a cell is amplified
  if the sum of its slots' gradients is longer than a sum of orthogonal ones of the same lengths
  (the interval of that ratio, probes of all seeds together, lies above 1); not amplified if
  shorter. Intervals hold together with 95 % (Bonferroni over roles and cells). Shown if more than
  half are amplified and none is below; not shown the other way round; else undecided. `applied` is
  the same for the update that Adam makes.
* `capture`: shared policies are captured by the role with most gradient mass. A cell counts as
  captured if that role captured another in half of its tested runs or more. Shown if that are half
  of the cells or more, and more than chance would give (5 %); not shown if the 95 % bound of the
  share of captured cells is below one half; else undecided.

Only pairs of cells that differ in sharing alone count for the first two, with `MIN_SEEDS` seeds or
more on both sides and the same held-out problems.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from flowzoo.aliases import Floats
from flowzoo.baselines.diagnostics.amplification import amplification
from flowzoo.baselines.diagnostics.capture import LEVEL as FORM_LEVEL
from flowzoo.baselines.report.cells import CellData, Notes
from flowzoo.baselines.report.gradients import grams_of, probes
from flowzoo.baselines.report.words import between, percent, pluralize, points
from flowzoo.baselines.stats import at_least
from studies.paper.estimates import (
    LEVEL,
    DetectionCounts,
    Estimate,
    exact_p,
    least_findable,
    mean_difference,
    upper_bound,
)
from studies.paper.sharing import Pair, cliff_counts

ClaimVerdict = Literal["shown", "not shown", "undecided"]


class Claim(NamedTuple):
    """One claim, what was found, and the rule that the verdict follows."""

    name: str
    claim: str
    verdict: ClaimVerdict
    evidence: str
    rule: str


def paper_claims(
    pairs: Sequence[Pair],
    cells: Sequence[CellData],
    notes: Notes,
    roles: Sequence[CellAmplification],
) -> list[Claim]:
    """The verdicts on all claims.

    `pairs` are those that may be claimed about, `notes` the facts of the runs by name, `roles` the
    amplification of parallel roles, cell by cell.
    """
    return [
        peak_claim(pairs),
        cliff_claim(pairs, notes),
        amplification_claim(roles, applied=False),
        amplification_claim(roles, applied=True),
        capture_claim(cells, notes),
    ]


def peak_claim(pairs: Sequence[Pair]) -> Claim:
    """Isolated policies reach higher peaks."""
    words = ("peak", "Isolated policies reach higher peaks than shared ones")
    rule = (
        "Mean over pairs of cells of the cross-fitted peak, isolated minus shared. Shown if its "
        "95\u00a0% interval (over seeds and problems) lies above 0, not shown if below."
    )
    if not pairs:
        return Claim(*words, "undecided", _NO_PAIRS, rule)
    samples = [pair.samples for pair in pairs]
    peak = mean_difference([(one.peak, two.peak) for one, two in samples])
    end = mean_difference([(one.terminal, two.terminal) for one, two in samples])
    evidence = (
        f"Peaks of isolated policies differ from those of shared ones by {_difference(peak)} "
        f"({pluralize(peak.pairs, 'pair')} of cells, {peak.runs[1]} and {peak.runs[0]} runs). "
        f"Terminal accuracies differ by {_difference(end)}."
    )
    return Claim(*words, interval_verdict(peak.low, peak.high), evidence, rule)


def interval_verdict(low: float, high: float, null: float = 0.0) -> ClaimVerdict:
    """Verdict of an interval on being above `null`."""
    if low > null:
        return "shown"
    return "not shown" if high < null else "undecided"


def cliff_claim(pairs: Sequence[Pair], notes: Notes) -> Claim:
    """Isolated policies fall off cliffs more often."""
    words = ("cliff", "Isolated policies fall off cliffs more often than shared ones")
    rule = (
        "Runs with a cliff or a fall in progress, each judged by itself, isolated against shared. "
        "Shown if there are more by Fisher's exact test stratified by pair of cells (two-sided, "
        "5\u00a0%), not shown "
        "if there are fewer."
    )
    strata = [_cliffs(pair, notes) for pair in pairs]
    strata = [stratum for stratum in strata if min(stratum.tested) > 0]
    if not strata:
        return Claim(*words, "undecided", _NO_PAIRS, rule)
    more, fewer = exact_p(strata)
    verdict: ClaimVerdict = "shown" if 2 * more <= LEVEL else "undecided"
    if 2 * fewer <= LEVEL:
        verdict = "not shown"
    found = [sum(stratum.found[side] for stratum in strata) for side in (0, 1)]
    tested = [sum(stratum.tested[side] for stratum in strata) for side in (0, 1)]
    drop = mean_difference([(one.drop, two.drop) for one, two in (p.samples for p in pairs)])
    least = least_findable([stratum.tested for stratum in strata])
    power = (
        f"With no cliff on the other side and cliffs spread evenly over pairs, {least} of "
        f"{tested[1]} would have been needed."
        if least
        else "Not even cliffs in all runs of one side would have told."
    )
    evidence = (
        f"Cliffs in {found[1]} of {tested[1]} isolated and {found[0]} of {tested[0]} shared runs "
        f"(p = {min(1.0, 2 * min(more, fewer)):.2g}; 95\u00a0% upper bounds "
        f"{percent(upper_bound(found[1], tested[1]))} and "
        f"{percent(upper_bound(found[0], tested[0]))}). {power} Drops from peak to end, isolated "
        f"minus shared: {_difference(drop)}."
    )
    return Claim(*words, verdict, evidence, rule)


def amplification_claim(roles: Sequence[CellAmplification], *, applied: bool) -> Claim:
    """Parallel agents of one role add up to more than orthogonal ones would."""
    what = "the update that Adam makes of it" if applied else "that role's gradient"
    words = (
        "applied" if applied else "amplification",
        f"Parallel agents of one role amplify {what}",
    )
    rule = (
        "Corrected estimates per role and cell, probes of all seeds together; intervals hold "
        "together with 95\u00a0%. Amplified: the sum is longer than that of orthogonal gradients "
        "of the same lengths. Shown if more than half are amplified and none is shorter, not "
        "shown the other way round."
    )
    mine = [role for role in roles if role.applied == applied]
    if not mine:
        why = "No parallel role was probed (train with --probe-every)."
        return Claim(*words, "undecided", why, rule)
    found = [interval_verdict(role.over_low, role.over_high, null=1.0) for role in mine]
    above, below = found.count("shown"), found.count("not shown")
    verdict: ClaimVerdict = "undecided"
    if above > len(mine) / 2 and not below:
        verdict = "shown"
    if below > len(mine) / 2 and not above:
        verdict = "not shown"
    aligned = sum(role.low <= role.slots <= role.high < math.inf for role in mine)
    bounded = [role for role in mine if math.isfinite(role.over_high)]
    rest = len(mine) - len(bounded)
    each = [_amplified(role) for role in bounded]
    each += [f"With unbounded intervals: {pluralize(rest, 'role')}."] if rest else []
    evidence = (
        f"Of {pluralize(len(mine), 'parallel role')} of a cell, {above} are amplified, {below} "
        f"are shorter than orthogonal ones and {len(mine) - above - below} cannot be told; the "
        f"intervals of {aligned} are bounded and hold N. {' '.join(each)} "
        "N is what agents give that push one way, be their gradients long or short; "
        "fewer effective agents than N say that the team treats them unlike, as where an "
        "aggregator prefers a place. The naive value of one sample is pulled towards √N by noise "
        "alone."
    )
    return Claim(*words, verdict, evidence, rule)


def capture_claim(cells: Sequence[CellData], notes: Notes) -> Claim:
    """Shared policies are captured by the role with most gradient mass."""
    words = ("capture", "Shared policies are captured by the role with most gradient mass")
    rule = (
        "A cell counts as captured if the role with most mass captured another one in half of its "
        "tested runs or more. Shown if that are half of the cells or more, and more than chance "
        "would give (5\u00a0%); not shown if the 95\u00a0% upper bound of the share of captured "
        "cells is below one half."
    )
    tested = [_captures(cell, notes) for cell in cells]
    tested = [one for one in tested if one.runs]
    if not tested:
        why = "No run has a shared policy whose roles' gradients were measured over enough steps."
        return Claim(*words, "undecided", why, rule)
    caught = sum(2 * one.by_top >= one.runs for one in tested)
    chance = max(_by_chance(one) for one in tested)
    p_value = at_least(caught, len(tested), chance)
    bound = upper_bound(caught, len(tested))
    verdict: ClaimVerdict = "undecided"
    if 2 * caught >= len(tested) and p_value <= LEVEL:
        verdict = "shown"
    elif bound < 0.5:
        verdict = "not shown"
    runs = sum(one.runs for one in tested)
    evidence = (
        f"The role with most mass captured another in {sum(one.by_top for one in tested)} of "
        f"{runs} tested runs, another role did in {sum(one.by_others for one in tested)}; "
        f"{caught} of {pluralize(len(tested), 'cell')} count as captured (95\u00a0% upper bound of "
        f"the share {percent(bound)}; chance alone would give as many with p = {p_value:.2g}, at "
        f"{percent(FORM_LEVEL)} a pair of roles). The role with most mass had the excess of mass "
        f"that the definition asks for in {sum(one.dominant for one in tested)} of {runs} runs."
    )
    return Claim(*words, verdict, evidence, rule)


class _Tested(NamedTuple):
    """Runs of a cell that were tested for capture."""

    runs: int
    by_top: int
    """In which the role with most mass captured another."""
    by_others: int
    """In which another role did."""
    dominant: int
    """In which the role with most mass passed the first half of the definition."""
    others: int
    """Roles that it could have captured."""


_NO_PAIRS = (
    "No two cells differ in the sharing of policies alone, have seeds enough on both sides, and "
    "were evaluated on the same problems often enough."
)


def _difference(found: Estimate) -> str:
    if math.isinf(found.low):
        return f"{points(found.mean, sign=True)} points (one seed: no interval)"
    return f"{points(found.mean, sign=True)} points ({between(found.low, found.high)})"


def _cliffs(pair: Pair, notes: Notes) -> DetectionCounts:
    (one, first), (two, second) = (
        cliff_counts(cell, notes) for cell in (pair.shared, pair.isolated)
    )
    return DetectionCounts((one, two), (first, second))


def _amplified(role: CellAmplification) -> str:
    """A role whose ratio over orthogonal has an upper bound."""
    # Without an upper bound the value is of no meaning.
    value = "not known" if math.isinf(role.high) else f"{role.value:.2f}"
    high = "unbounded" if math.isinf(role.high) else f"{role.high:.2f}"
    return (
        f"{role.role} of {role.cell}: {value} (interval {role.low:.2f} to {high}; naive "
        f"{role.naive:.2f}; N = {role.slots}), over orthogonal {role.over_low:.2f} to "
        f"{role.over_high:.2f}."
    )


def _captures(cell: CellData, notes: Notes) -> _Tested:
    runs = by_top = by_others = dominant = others = 0
    for run in cell.runs:
        facts = notes.get(run.name, {"captures": ()})
        verdicts = [one for one in facts["captures"] if one["pairs"]]
        if not verdicts:
            continue
        runs += 1
        others = max([others, *(len(one["roles"]) - 1 for one in verdicts)])
        pairs = [(pair, one["top"]) for one in verdicts for pair in one["pairs"]]
        by_top += any(pair["captured"] and pair["by"] == top for pair, top in pairs)
        by_others += any(pair["captured"] and pair["by"] != top for pair, top in pairs)
        dominant += any(pair["dominant"] and pair["by"] == top for pair, top in pairs)
    return _Tested(runs, by_top, by_others, dominant, others)


def _by_chance(tested: _Tested) -> float:
    """Upper bound of the chance that a cell counts as captured where nothing moves."""
    each = 1 - (1 - FORM_LEVEL) ** tested.others
    return at_least(math.ceil(tested.runs / 2), tested.runs, each)


# -- probes of all seeds pooled --------------------------------------------------------------------


class CellAmplification(NamedTuple):
    """One parallel role of one cell, its probes of all seeds together."""

    cell: str
    role: str
    applied: bool
    slots: int
    value: float
    low: float
    high: float
    over: float
    over_low: float
    over_high: float
    effective: float
    naive: float
    probes: int


def cell_amplification(cells: Sequence[CellData]) -> list[CellAmplification]:
    """Every parallel role of every cell; intervals of one kind hold together with 95 %."""
    grams: dict[tuple[str, str, bool], list[tuple[int, Floats]]] = {}
    for cell in cells:
        for number, run in enumerate(cell.runs):
            for role, seen in probes(run).items():
                for applied in (False, True):
                    mine = grams.setdefault((cell.name, role, applied), [])
                    mine += [(number, gram) for gram in grams_of(seen, applied)]
    found: list[CellAmplification] = []
    for applied in (False, True):
        mine = {key: value for key, value in grams.items() if key[2] == applied and value}
        confidence = 1 - 0.05 / max(1, len(mine))
        for (cell, role, _), values in mine.items():
            slots = Counter(len(gram) for _, gram in values).most_common(1)[0][0]
            chosen = [(run, gram) for run, gram in values if len(gram) == slots]
            one = amplification(
                [gram for _, gram in chosen],
                runs=[run for run, _ in chosen],
                confidence=confidence,
                shuffles=0,
            )
            found.append(
                CellAmplification(
                    cell, role, applied, one.slots, one.value, one.low, one.high, one.over,
                    one.over_low, one.over_high, one.effective, one.naive, len(chosen),
                )
            )  # fmt: skip
    return found
