"""How often are the verdicts of `flowzoo.baselines.diagnostics` wrong, on runs of known truth?

    OMP_NUM_THREADS=1 python benchmarks/diagnostics_truth.py                  # all, some minutes
    OMP_NUM_THREADS=1 python benchmarks/diagnostics_truth.py --parts cliff --simulations 1000

`cliff`: cells of 20 evaluations. First without a fall (every cliff is a false positive), then with
a true fall from 60 %. Columns: cliffs called, their rate with the upper end of its exact 95 %
interval (Clopper and Pearson, Biometrika 26 (1934) 404), cells without verdict, mean error of the
cross-fitted and of the naive peak against the true one with its standard error, the standard error
as reported and as found over the simulations, and how often the reported interval has the truth.
The last rows have more than the noise of the items: seeds whose falls differ (mean 0, standard
deviation given), and single runs whose true accuracy wobbles from evaluation to evaluation.

`amplification`: probes of 8 blocks, one or ten pooled; gradients of slots have the lengths given,
in directions of one cosine. Signal to noise is that of the root mean square of the slots. Columns:
the value expected, medians of the corrected and of the naive value, how often the 95 % interval has
the truth, how often it is bounded, its median width where it is; how often the interval of the sum
over that of orthogonal slots has its truth; the effective number of slots, and its median where the
interval is bounded. Rows `turned` pool probes of three runs, in each of which another slot is the
longest.

`capture`: 100 updates of three voters and an aggregator, 200 replies each at both ends, planted
with neither, one or both halves of the definition. Columns: runs in which the voters captured the
aggregator, with the bound as above; how often either half was found; captures the other way.

`falls`: single runs of few evaluations and few items: what is called (a cliff, falling, too few
evaluations or items, none), and `online`, runs in which `find_collapse` said so at some evaluation.

`checkers`: judges with true shares before training and at the end, over five evaluations; rows
without a collapse first. Columns: verdicts, with the bound as above. Then choosers.

`dead`: teams of 200 problems, of which a role loses its skill, says the same, copies, or is not
needed any more; `any` counts teams with any finding at all, which is the false alarm where nothing
is planted.

`spikes`: log-normal gradient norms of 100 steps, of policies that learn or have solved everything,
with planted spikes or none. Columns: runs with a spike called, share of the planted ones found.

`blame`: scripted players on real workflows, 200 problems; skills before and now. Columns: who is
blamed, how often that is right, mean cost of the blamed role in points.

Simulated verdicts take 200 resamples instead of 2000; `cliff` begins with what that changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import tyro
from scipy.special import betaincinv

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.amplification import Amplification, amplification
from flowzoo.baselines.diagnostics.blame import find_blame
from flowzoo.baselines.diagnostics.capture import find_captures
from flowzoo.baselines.diagnostics.checkers import chooser, judges
from flowzoo.baselines.diagnostics.cliff import FELL, LAST, Cliff, CliffVerdict, find_cliff
from flowzoo.baselines.diagnostics.collapse import find_collapse
from flowzoo.baselines.diagnostics.cross_fit import ends_after
from flowzoo.baselines.diagnostics.dead_roles import (
    became_alone,
    became_constant,
    became_copy,
    lost_skill,
    no_longer_asked,
)
from flowzoo.baselines.diagnostics.scripted_runs import judge_skill, scripted_episodes
from flowzoo.baselines.diagnostics.simulation import (
    course,
    simulate,
    simulate_capture,
    simulate_gram,
    simulate_seeds,
    simulate_team,
)
from flowzoo.baselines.metrics import spike
from flowzoo.envs.api.registry import make_workflow

Floats = npt.NDArray[np.float64]
Truth = Callable[[np.random.Generator], Sequence[Floats]]
EVALUATIONS = 20
LENGTHS = ((1, 1, 1), (16, 4, 1), (1, 1, 0), (1, 1, 1, 1, 1), (16, 8, 4, 2, 1))
"""Relative lengths of the slots' expected gradients."""
RESAMPLES = 200


@dataclass(frozen=True)
class Options:
    """What is simulated."""

    parts: tuple[
        Literal[
            "cliff", "falls", "checkers", "dead", "blame", "spikes", "amplification", "capture"
        ], ...
    ] = (
        "cliff", "falls", "checkers", "dead", "blame", "spikes", "amplification", "capture",
    )  # fmt: skip
    """Tables to print."""
    simulations: int = 1000
    """Cells of each row of noise; runs of each row of the other tables."""
    power_simulations: int = 300
    """Cells of each other row of the cliff table."""
    blames: int = 20
    """Pairs of transcripts of each row of the table of blame; a second or two each."""
    items: tuple[int, ...] = (60, 160, 500, 1412)
    """Held-out items of the cliff table."""
    seed: int = 0
    """Of everything random."""


class Row(NamedTuple):
    """One row of the cliff table before it is simulated."""

    name: str
    seeds: int
    truth: Truth


def noise_rows() -> list[Row]:
    """Nothing but the noise of the items."""
    flat = np.full(EVALUATIONS, 0.6)
    rising = np.linspace(0.4, 0.6, EVALUATIONS)
    noise = {"constant": flat, "rises and stays": course(0.0, EVALUATIONS), "rises": rising}
    return [
        Row(name, seeds, lambda _, s=seeds, c=accuracy: [c] * s)
        for seeds in (1, 3)
        for name, accuracy in noise.items()
    ]


def falling_rows() -> list[Row]:
    """A true fall."""
    return [
        Row(f"falls by {drop:.0%}", seeds, lambda _, s=seeds, d=drop: _falling(s, d))
        for seeds in (1, 3)
        for drop in (0.05, 0.10, 0.15, 0.20)
    ]


def differing_rows() -> list[Row]:
    """No fall on average, but more than the noise of the items."""
    rows = [Row(f"seeds differ by {d:.0%}", 3, _differing(d)) for d in (0.05, 0.1)]
    return rows + [Row(f"wobbles by {d:.0%}", 1, _wobbling(d)) for d in (0.01, 0.02, 0.03)]


def _falling(seeds: int, drop: float) -> list[Floats]:
    return [course(drop, EVALUATIONS)] * seeds


def _differing(deviation: float) -> Truth:
    """Three seeds that rise, stay, and end higher or lower."""
    return lambda rng: [
        course(float(np.clip(fall, -0.35, 0.55)), EVALUATIONS)
        for fall in deviation * rng.standard_normal(3)
    ]


def _wobbling(deviation: float) -> Truth:
    """A plateau whose true accuracy differs from evaluation to evaluation."""
    return lambda rng: [0.6 + deviation * rng.standard_normal(EVALUATIONS)]


def cliff_table(options: Options) -> None:
    """Print the table."""
    resamples_check(options)
    print(
        f"\n{'items':>5} {'seeds':>5} {'truth':20} {'cliffs':>11} {'rate':>6} {'<':>6} "
        f"{'untold':>6} {'peak error':>14} {'naive peak':>14} {'se':>6} {'true':>6} {'covers':>6}"
    )
    for rows, count in (
        (noise_rows(), options.simulations),
        (falling_rows(), options.power_simulations),
        (differing_rows(), options.power_simulations),
    ):
        for items in options.items:
            for row in rows:
                rng = np.random.default_rng([options.seed, items])
                print(cliff_line(row, items, count, rng), flush=True)


def cliff_line(row: Row, items: int, simulations: int, rng: np.random.Generator) -> str:
    """One row of the table."""
    cells: list[Cliff] = []
    tops: list[float] = []
    falls: list[float] = []
    for number in range(simulations):
        truth = row.truth(rng)
        tops.append(float(np.mean([np.max(one) for one in truth])))
        falls.append(float(np.mean([true_drop(one) for one in truth])))
        scores = simulate_seeds(truth, items, rng)
        cells.append(find_cliff(scores, range(EVALUATIONS), resamples=RESAMPLES, seed=number))
    found = sum(cell.verdict in FELL for cell in cells)
    untold = sum(cell.verdict.startswith("not enough") for cell in cells)
    peak = np.array([cell.peak for cell in cells]) - tops
    naive = np.array([cell.naive_peak for cell in cells]) - tops
    drops = np.array([cell.drop for cell in cells])
    covers = np.mean([c.low <= fall <= c.high for c, fall in zip(cells, falls, strict=True)])
    return (
        f"{items:5} {row.seeds:5} {row.name:20} {found:5}/{simulations:<5} "
        f"{found / simulations:6.1%} {upper_bound(found, simulations):6.1%} "
        f"{untold / simulations:6.1%} {error(peak)} {error(naive)} "
        f"{np.mean([cell.se for cell in cells]):6.2%} {drops.std(ddof=1):6.2%} {covers:6.1%}"
    )


def true_drop(course: Floats) -> float:
    """What a course loses after its peak, by the definition of the verdict."""
    return float(course.max() - course @ ends_after(len(course), LAST)[:, course.argmax()])


def resamples_check(options: Options) -> None:
    """Print the standard error from few resamples beside that from as many as a verdict takes."""
    rng = np.random.default_rng(options.seed)
    for items in options.items:
        scores = simulate_seeds([course(0.05, EVALUATIONS)], items, rng)
        start = time.process_time()
        full = [find_cliff(scores, range(EVALUATIONS), seed=n).se for n in range(10)]
        middle = time.process_time()
        few = [
            find_cliff(scores, range(EVALUATIONS), resamples=RESAMPLES, seed=n).se
            for n in range(10)
        ]
        end = time.process_time()
        print(
            f"{items} items, 1 seed: se {np.mean(full):.3%} +- {np.std(full):.3%} in "
            f"{100 * (middle - start):.0f} ms with 2000 resamples, {np.mean(few):.3%} +- "
            f"{np.std(few):.3%} in {100 * (end - middle):.0f} ms with {RESAMPLES}"
        )


def amplification_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'lengths':12} {'slots are':10} {'SNR':>5} {'probes':>6} {'truth':>6} {'value':>6} "
        f"{'naive':>6} {'covers':>7} {'bounded':>8} {'width':>6} {'over':>7} {'eff.':>5} "
        f"{'found':>6}"
    )
    for lengths in LENGTHS:
        apart = np.array(lengths, np.float64)
        apart /= math.sqrt(np.mean(apart**2))
        for name, cosine in (("aligned", 1.0), ("cosine 0.5", 0.5), ("orthogonal", 0.0)):
            gram = cosine + (1 - cosine) * np.eye(len(apart))
            # Rows whose inner products are `gram`; the tiny diagonal keeps the root real.
            ways = np.linalg.cholesky(gram + 1e-12 * np.eye(len(apart))).astype(np.float64)
            title = f"{':'.join(map(str, lengths)):12} {name:10}"
            for snr in (10.0, 1.0, 0.3, 0.1):
                for probes in (1, 10):
                    means = [apart[:, None] * ways]
                    print(amplification_line(title, means, snr, probes, options), flush=True)
    apart = np.array([16, 4, 1]) / math.sqrt(91)
    for snr in (10.0, 1.0, 0.3):
        means = [np.roll(apart, run)[:, None] * np.eye(1, 3) for run in range(3)]
        print(amplification_line(f"{'16:4:1':12} {'turned':10}", means, snr, 12, options))


def amplification_line(
    title: str, of_run: Sequence[Floats], snr: float, probes: int, options: Options
) -> str:
    """One row of the table; `of_run` are the expected gradients of each run that is pooled."""
    means, slots = of_run[0], len(of_run[0])
    rng = np.random.default_rng([options.seed, slots, round(10 * snr), probes])
    runs = [probe % len(of_run) for probe in range(probes)]
    squares = np.sum(means**2, axis=1)
    total = math.sqrt(float(np.sum(means @ means.T)))
    truth, over = slots * total / np.sqrt(squares).sum(), total / math.sqrt(squares.sum())
    effective = np.sqrt(squares).sum() ** 2 / squares.sum()
    found: list[Amplification] = []
    for _ in range(options.simulations):
        grams = [simulate_gram(of_run[run], 1 / snr, 8, rng) for run in runs]
        found.append(amplification(grams, runs=runs, shuffles=0))
    values = np.array([one.value for one in found])
    widths = np.array([one.high - one.low for one in found])
    bounded = np.isfinite(widths)
    width = f"{np.median(widths[bounded]):6.2f}" if bounded.any() else "     -"
    number = np.array([one.effective for one in found])
    counted = f"{np.median(number[bounded]):6.2f}" if bounded.any() else "     -"
    return (
        f"{title} {snr:5g} {probes:6} {truth:6.2f} {np.nanmedian(values):6.2f} "
        f"{np.median([one.naive for one in found]):6.2f} "
        f"{np.mean([one.low <= truth <= one.high for one in found]):7.1%} "
        f"{bounded.mean():8.1%} {width} "
        f"{np.mean([one.over_low <= over <= one.over_high for one in found]):7.1%} "
        f"{effective:5.2f} {counted}"
    )


CAPTURES: dict[str, dict[str, Any]] = {
    "mass and form": {"excess": 0.25, "moved": 0.8},
    "weak mass and form": {"excess": 0.15, "moved": 0.8},
    "mass, half the way": {"excess": 0.25, "moved": 0.5},
    "mass and form, 6 voters": {"excess": 0.12, "moved": 0.8, "voters": 6},
    "mass and form, 12 voters": {"excess": 0.065, "moved": 0.8, "voters": 12},
    "form alone, 12 voters": {"excess": 0.0, "moved": 0.8, "voters": 12},
    "mass alone": {"excess": 0.25, "moved": 0.0},
    "mass alone, roles alike": {"excess": 0.25, "moved": 0.0, "apart": 0.0},
    "form alone": {"excess": 0.0, "moved": 0.8},
    "form, noisy mass": {"excess": 0.0, "moved": 0.8, "noise": 0.1},
    "noise alone": {"excess": 0.0, "moved": 0.0},
    "noise alone, roles alike": {"excess": 0.0, "moved": 0.0, "apart": 0.0},
}
"""What `simulate_capture` plants in each row."""


COURSES: dict[str, Sequence[float]] = {
    "flat, 3 evaluations": [0.6] * 3,
    "rises, 3 evaluations": [0.4, 0.6, 0.7],
    "flat, 5 evaluations": [0.6] * 5,
    "rises, 5 evaluations": [0.40, 0.46, 0.59, 0.73, 0.78],
    "flat, 7 evaluations": [0.6] * 7,
    "flat at 10 %": [0.1] * 7,
    "3: falls by 30": [0.4, 0.7, 0.4],
    "5: falls by 25 at the end": [0.77, 0.75, 0.72, 0.58, 0.52],
    "5: falls by 27 in one": [0.26, 0.60, 0.79, 0.70, 0.52],
    "5: 82 to 18": [0.82, 0.6, 0.4, 0.25, 0.18],
    "7: falls by 17 and stays": [0.4, 0.6, 0.7, 0.6, 0.53, 0.53, 0.53],
    "7: dips by 25 and recovers": [0.4, 0.6, 0.7, 0.45, 0.7, 0.7, 0.7],
}
"""True courses of single runs; those after the sixth fall."""


def falls_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'items':>5} {'truth':28} {'cliff':>6} {'falling':>8} {'fell':>6} {'<':>6} "
        f"{'too few evaluations':>20} {'items':>6} {'none':>6} {'online':>7}"
    )
    count = options.power_simulations
    for items in (60, 160):
        for place, (name, course_of) in enumerate(COURSES.items()):
            rng = np.random.default_rng([options.seed, items, place])
            verdicts: list[str] = []
            online = 0
            for number in range(count):
                scores = simulate(course_of, items, rng)
                steps = range(len(scores))
                found = find_cliff([scores], steps, resamples=RESAMPLES, seed=number)
                verdicts.append(found.verdict)
                rows = [{"step": n, "eval/scores": one.tolist()} for n, one in enumerate(scores)]
                online += any(find_collapse(rows[: end + 1]) for end in steps)
            fell = sum(verdict in FELL for verdict in verdicts)
            share = {name: verdicts.count(name) / count for name in get_args(CliffVerdict)}
            print(
                f"{items:5} {name:28} {share['cliff']:6.1%} {share['falling']:8.1%} "
                f"{fell / count:6.1%} {upper_bound(fell, count):6.1%} "
                f"{share['not enough evaluations']:20.1%} {share['not enough items']:6.1%} "
                f"{share['no cliff']:6.1%} {online / count:7.1%}",
                flush=True,
            )


JUDGED_SHARES: dict[str, tuple[float, float, float, float]] = {
    "no change": (0.58, 0.58, 0.9, 0.9),
    "at chance throughout": (0.5, 0.5, 0.5, 0.5),
    "half as many": (0.6, 0.3, 0.9, 0.95),
    "TPR .58 to .35": (0.58, 0.35, 0.9, 0.9),
    "never accepted": (0.1, 0.1, 0.9, 0.9),
    "TPR .58 to .15": (0.58, 0.15, 0.9, 0.95),
    "TPR .58 to .08": (0.58, 0.08, 0.9, 1.0),
    "TPR 1 to 0": (1.0, 0.0, 0.7, 1.0),
    "TNR .6 to .08": (0.89, 0.95, 0.6, 0.08),
}
"""True TPR before and at the end, TNR likewise; the last four are collapses."""


def checkers_table(options: Options) -> None:
    """Print the tables of judges and of choosers."""
    print(f"\n{'problems':>8} {'truth':24} {'rejects':>8} {'accepts':>8} {'<':>6} {'online':>7}")
    count = options.simulations
    for items in (60, 160):
        for place, (name, (tpr, end_tpr, tnr, end_tnr)) in enumerate(JUDGED_SHARES.items()):
            rng = np.random.default_rng([options.seed, items, place])
            verdicts: list[str] = []
            online = 0
            for _ in range(count):
                rows = judged_rows((tpr, end_tpr), (tnr, end_tnr), items, rng)
                verdicts += [one.verdict for one in judges(rows)]
                online += find_collapse(rows) is not None
            bad = sum(verdict.endswith("everything") for verdict in verdicts)
            print(
                f"{items:8} {name:24} {verdicts.count('rejects everything') / count:8.1%} "
                f"{verdicts.count('accepts everything') / count:8.1%} "
                f"{upper_bound(bad, count):6.1%} {online / count:7.1%}",
                flush=True,
            )
    print(f"\n{'problems':>8} {'share of one place':24} {'collapsed':>9} {'<':>6} {'always':>7}")
    for items in (60, 160):
        for before, after in ((1 / 3, 1 / 3), (0.7, 0.7), (0.7, 0.8), (0.33, 0.97), (0.97, 0.97)):
            rng = np.random.default_rng([options.seed, items, round(100 * after)])
            found = [
                chooser(choosing_team(items, before, rng), choosing_team(items, after, rng))
                for _ in range(count)
            ]
            bad = sum(one is not None and one.collapsed for one in found)
            always = sum(one is not None and one.always for one in found)
            print(
                f"{items:8} {f'{before:.0%} to {after:.0%}':24} {bad / count:9.1%} "
                f"{upper_bound(bad, count):6.1%} {always / count:7.1%}",
                flush=True,
            )


def judged_rows(
    tpr: tuple[float, float], tnr: tuple[float, float], items: int, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Rows of five evaluations; half of the items are right, one verdict each."""
    rows: list[dict[str, Any]] = []
    for place, way in enumerate((0.0, 0.3, 0.6, 1.0, 1.0)):
        row: dict[str, Any] = {"step": place, "eval/scores": [0.5, 0.5] * (items // 2)}
        for kind, (start, end) in (("tpr", tpr), ("tnr", tnr)):
            hits = rng.binomial(items // 2, start + way * (end - start))
            row[f"eval/share/evaluator_{kind}"] = hits / (items // 2)
            row[f"eval/share_of/evaluator_{kind}"] = items // 2
        rows.append(row)
    return rows


def choosing_team(items: int, share: float, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Episodes in which place 2 has this share of the choices."""
    fixed = simulate_team(items, rng, place=2)
    other = simulate_team(items, rng)
    for episode in other:
        episode["facts"]["chosen"] = int(rng.choice([0, 2]))
    return [one if rng.random() < share else two for one, two in zip(fixed, other, strict=True)]


TEAMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing changes": ({}, {}),
    "nothing, at 10 %": ({"skill": 0.1}, {"skill": 0.1}),
    "all gain": ({"skill": 0.4}, {"skill": 0.6}),
    "skill 50 to 40 %": ({"skill": 0.5}, {"skill": 0.4}),
    "skill 38 to 2 %, alone": ({"skill": 0.38}, {"skill": 0.02, "alone": 0.7}),
    "skill 60 to 25 %": ({"skill": 0.6}, {"skill": 0.25}),
    "same reply": ({}, {"constant": True}),
    "copies": ({}, {"copies": True}),
}
"""What `simulate_team` plants before and at the end; the last four are deaths."""


def dead_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'planted':24} {'skill':>7} {'alone':>7} {'constant':>8} {'copy':>7} {'any':>7} "
        f"{'<':>6}"
    )
    count = options.power_simulations
    for place, (name, (before, after)) in enumerate(TEAMS.items()):
        rng = np.random.default_rng([options.seed, place])
        kinds: list[str] = []
        teams = 0
        for _ in range(count):
            first, last = simulate_team(200, rng, **before), simulate_team(200, rng, **after)
            tests = [became_alone(first, last)]
            for role in ("generator", "aggregator"):
                # The aggregator's truth is the team's, which other verdicts are about.
                if role == "generator":
                    tests.append(lost_skill(first, last, role, 0, 2 * (EVALUATIONS - 1)))
                tests += [became_constant(first, last, role), became_copy(first, last, role)]
                tests.append(no_longer_asked(first, last, role))
            found = {test.kind for test in tests if test is not None and test.found}
            kinds += found
            teams += bool(found)
        rates = [kinds.count(kind) / count for kind in ("skill", "alone", "constant", "copy")]
        print(
            f"{name:24} {rates[0]:7.1%} {rates[1]:7.1%} {rates[2]:8.1%} {rates[3]:7.1%} "
            f"{teams / count:7.1%} {upper_bound(teams, count):6.1%}",
            flush=True,
        )


FAIR, COLLAPSED = judge_skill(0.6, 0.8), judge_skill(0.05, 1.0)
STAMP = judge_skill(0.97, 0.05)
SEARCH = {"verifier": 0.95, "searcher": 0.85, "answerer": 0.9}
PLANTED: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("eval_opt", "nothing", {"generator": 0.6, "evaluator": FAIR},
     {"generator": 0.6, "evaluator": FAIR}, ""),
    ("eval_opt", "the generator gains", {"generator": 0.4, "evaluator": FAIR},
     {"generator": 0.7, "evaluator": FAIR}, ""),
    ("eval_opt", "the evaluator rejects all, the generator gains",
     {"generator": 0.4, "evaluator": FAIR}, {"generator": 0.65, "evaluator": COLLAPSED},
     "evaluator"),
    ("eval_opt", "the evaluator accepts all", {"generator": 0.5, "evaluator": FAIR},
     {"generator": 0.5, "evaluator": STAMP}, "evaluator"),
    ("eval_opt", "the generator falls", {"generator": 0.7, "evaluator": FAIR},
     {"generator": 0.35, "evaluator": FAIR}, "generator"),
    ("voting", "nothing", {"generator": 0.6, "aggregator": 0.8},
     {"generator": 0.6, "aggregator": 0.8}, ""),
    ("voting", "the aggregator falls, the generators gain", {"generator": 0.55, "aggregator": 0.95},
     {"generator": 0.65, "aggregator": 0.45}, "aggregator"),
    ("voting", "the generators fall", {"generator": 0.7, "aggregator": 0.8},
     {"generator": 0.3, "aggregator": 0.8}, "generator"),
    ("orch_workers", "the synthesizer falls",
     {"orchestrator": 0.9, "worker": 0.6, "synthesizer": 0.8},
     {"orchestrator": 0.9, "worker": 0.6, "synthesizer": 0.5}, "synthesizer"),
    ("search_team", "the answerer falls", SEARCH, SEARCH | {"answerer": 0.55}, "answerer"),
    ("search_team", "the searcher falls", SEARCH, SEARCH | {"searcher": 0.15}, "searcher"),
]  # fmt: skip
"""Workflow, what is planted, skills before and now, and the culprit."""


def blame_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'workflow':13} {'planted':48} {'culprit':12} {'right':>6} {'other':>6} {'nobody':>7} "
        f"{'cost':>6}"
    )
    right_of = wrong_of = planted_of = 0
    for name, what, before, now, culprit in PLANTED:
        task = "search" if name == "search_team" else "math"
        workflow = make_workflow(name, task, level=1)
        problems = distinct_problems(workflow.task, "validation", 200)
        blamed: list[str] = []
        costs: list[float] = []
        for number in range(options.blames):
            parts = [
                scripted_episodes(workflow, problems, skills, 2 * number + place)
                for place, skills in enumerate((before, now))
            ]
            found = find_blame(workflow, problems, *parts)
            assert found is not None
            blamed.append(found.blamed)
            costs += [one.cost.mean for one in found.roles if one.role == culprit]
        right, nobody = blamed.count(culprit), blamed.count("")
        other = len(blamed) - right - (nobody if culprit else 0)
        if culprit:
            planted_of, right_of = planted_of + len(blamed), right_of + right
        wrong_of += other
        print(
            f"{name:13} {what:48} {culprit or '-':12} {right / len(blamed):6.1%} "
            f"{other / len(blamed):6.1%} {nobody / len(blamed):7.1%} "
            f"{100 * float(np.mean(costs)) if costs else math.nan:6.1f}",
            flush=True,
        )
    total = options.blames * len(PLANTED)
    print(
        f"planted culprits blamed: {right_of} of {planted_of} ({right_of / planted_of:.1%}); "
        f"somebody blamed wrongly: {wrong_of} of {total} (upper bound "
        f"{upper_bound(wrong_of, total):.1%})"
    )


def spikes_table(options: Options) -> None:
    """Print the table."""
    print(f"\n{'norms':36} {'runs with one':>13} {'<':>6} {'planted found':>14}")
    for name, solved, planted in (
        ("learns", False, 0), ("solved after 40 steps", True, 0), ("learns, 3 spikes", False, 3),
        ("solved after 40 steps, 3 spikes", True, 3),
    ):  # fmt: skip
        rng = np.random.default_rng([options.seed, int(solved)])
        runs = hits = 0
        for _ in range(options.simulations):
            norms = np.exp(0.3 * rng.standard_normal(100))
            if solved:  # most steps have no lesson left; some have one as large as ever
                quiet = (np.arange(100) >= 40) & (rng.random(100) < 0.85)
                norms = np.where(quiet, 0.01 * norms, norms)
            places = 10 + rng.permutation(90)[:planted]
            norms[places] = 12 * np.exp(0.1 * rng.standard_normal(planted))
            called = {n for n in range(100) if spike(norms[n], norms[:n].tolist())}
            runs += bool(called - set(places.tolist()))
            hits += len(called & set(places.tolist()))
        found = f"{hits / (planted * options.simulations):14.1%}" if planted else "             -"
        count = options.simulations
        print(f"{name:36} {runs / count:13.1%} {upper_bound(runs, count):6.1%} {found}")


def capture_table(options: Options) -> None:
    """Print the table."""
    print(
        f"\n{'planted':26} {'captured by voters':>20} {'<':>6} {'mass':>6} {'form':>6} "
        f"{'by aggregator':>14}"
    )
    for place, (name, planted) in enumerate(CAPTURES.items()):
        rng = np.random.default_rng([options.seed, place])
        voters, others = [], []
        for _ in range(options.simulations):
            run = simulate_capture(planted["excess"], planted["moved"], rng,
                                   noise=planted.get("noise", 0.05),
                                   apart=planted.get("apart", 1.0),
                                   voters=planted.get("voters", 3))  # fmt: skip
            for one in find_captures(*run, draws=200):
                (voters if one.by == "generator" else others).append(one)
        found = sum(one.captured for one in voters)
        print(
            f"{name:26} {found:6}/{len(voters):<5} {found / len(voters):6.1%} "
            f"{upper_bound(found, len(voters)):6.1%} "
            f"{np.mean([one.dominant for one in voters]):6.1%} "
            f"{np.mean([one.moved for one in voters]):6.1%} "
            f"{np.mean([one.captured for one in others]):14.1%}",
            flush=True,
        )


def upper_bound(found: int, of: int) -> float:
    """Upper end of the exact two-sided 95 % interval of a rate."""
    return float(betaincinv(found + 1, of - found, 0.975)) if found < of else 1.0


def error(values: Floats) -> str:
    """Mean with its standard error, in points."""
    return f"{100 * values.mean():+6.2f} +-{100 * values.std(ddof=1) / math.sqrt(len(values)):5.2f}"


def main(options: Options) -> None:
    """Simulate and print."""
    tables = {
        "cliff": cliff_table,
        "falls": falls_table,
        "checkers": checkers_table,
        "dead": dead_table,
        "blame": blame_table,
        "spikes": spikes_table,
        "amplification": amplification_table,
        "capture": capture_table,
    }
    for part in options.parts:
        tables[part](options)


if __name__ == "__main__":
    main(tyro.cli(Options))
