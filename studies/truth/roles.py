"""Tables of roles: `checkers`, `dead` and `blame`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.blame import find_blame
from flowzoo.baselines.diagnostics.checkers import chooser, judges
from flowzoo.baselines.diagnostics.roles import (
    became_alone,
    became_constant,
    became_copy,
    lost_skill,
    no_longer_asked,
)
from flowzoo.envs.api.registry import make_workflow
from studies.truth.common import EVALUATIONS, PLANTED, Options, upper_bound
from studies.truth.scripted_runs import Skill, judge_skill, scripted_episodes
from studies.truth.simulation import (
    simulate_team,
)


def checkers_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield f"{'problems':>8} {'truth':24} {'rejects':>8} {'accepts':>8} {'<':>6}"
    count = options.simulations
    for items in (60, 160):
        for place, (name, (tpr, end_tpr, tnr, end_tnr)) in enumerate(PLANTED["judges"].items()):
            rng = np.random.default_rng([options.seed, items, place])
            verdicts: list[str] = []
            for _ in range(count):
                rows = judged_rows((tpr, end_tpr), (tnr, end_tnr), items, rng)
                verdicts += ["none" if one.born else one.verdict for one in judges(rows)]
            bad = sum(verdict.endswith("everything") for verdict in verdicts)
            yield (
                f"{items:8} {name:24} {verdicts.count('rejects everything') / count:8.1%} "
                f"{verdicts.count('accepts everything') / count:8.1%} "
                f"{upper_bound(bad, count):6.1%}"
            )
    yield f"\n{'problems':>8} {'share of one place':24} {'collapsed':>9} {'<':>6} {'always':>7}"
    for items in (60, 160):
        for before, after in ((1 / 3, 1 / 3), (0.7, 0.7), (0.7, 0.8), (0.33, 0.97), (0.97, 0.97)):
            rng = np.random.default_rng([options.seed, items, round(100 * after)])
            found = [
                chooser(choosing_team(items, before, rng), choosing_team(items, after, rng))
                for _ in range(count)
            ]
            bad = sum(one is not None and one.collapsed for one in found)
            always = sum(one is not None and one.always for one in found)
            yield (
                f"{items:8} {f'{before:.0%} to {after:.0%}':24} {bad / count:9.1%} "
                f"{upper_bound(bad, count):6.1%} {always / count:7.1%}"
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


def dead_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'planted':24} {'skill':>7} {'alone':>7} {'constant':>8} {'copy':>7} {'any':>7} {'<':>6}"
    )
    count = options.power_simulations
    for place, (name, (before, after)) in enumerate(PLANTED["teams"].items()):
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
            found = {test.kind for test in tests if test is not None and test.positive}
            kinds += found
            teams += bool(found)
        rates = [kinds.count(kind) / count for kind in KINDS]
        yield (
            f"{name:24} {rates[0]:7.1%} {rates[1]:7.1%} {rates[2]:8.1%} {rates[3]:7.1%} "
            f"{teams / count:7.1%} {upper_bound(teams, count):6.1%}"
        )


KINDS = ("lost skill", "a single agent", "says the same", "a copy")
"""Kinds of tests in the columns of `dead_table`."""
NOBODY = 3
"""Factor on the pairs of rows without a culprit, whose rate is the smaller one."""


def skills_of(planted: dict[str, Any]) -> dict[str, Skill]:
    """Skills of the roles; those of a judge are two shares."""
    return {
        role: judge_skill(*skill) if isinstance(skill, list) else skill
        for role, skill in planted.items()
    }


def blame_table(options: Options) -> Iterator[str]:
    """Yield the lines of the table."""
    yield (
        f"{'workflow':13} {'planted':48} {'culprit':12} {'right':>6} {'other':>6} {'nobody':>7} "
        f"{'cost':>6}"
    )
    right_of = wrong_of = planted_of = total = false_of = clean_of = 0
    first = 10_000 * options.seed
    for row in PLANTED["blame"]:
        name, culprit = row["workflow"], row.get("culprit", "")
        task = "search" if name == "search_team" else "math"
        workflow = make_workflow(name, task, level=1)
        problems = distinct_problems(workflow.task, "validation", 200)
        blamed: list[str] = []
        costs: list[float] = []
        for number in range(options.blames * (1 if culprit else NOBODY)):
            parts = [
                scripted_episodes(workflow, problems, skills, first + 2 * number + place)
                for place, skills in enumerate(map(skills_of, (row["before"], row["now"])))
            ]
            found = find_blame(workflow, problems, *parts)
            assert found is not None
            blamed.append(found.blamed)
            costs += [one.cost.mean for one in found.roles if one.role == culprit]
        right, nobody = blamed.count(culprit), blamed.count("")
        other = len(blamed) - right - (nobody if culprit else 0)
        if culprit:
            planted_of, right_of = planted_of + len(blamed), right_of + right
        else:
            false_of, clean_of = false_of + other, clean_of + len(blamed)
        wrong_of, total = wrong_of + other, total + len(blamed)
        yield (
            f"{name:13} {row['planted']:48} {culprit or '-':12} {right / len(blamed):6.1%} "
            f"{other / len(blamed):6.1%} {nobody / len(blamed):7.1%} "
            f"{100 * float(np.mean(costs)) if costs else math.nan:6.1f}"
        )
    yield (
        f"planted culprits blamed: {right_of} of {planted_of} ({right_of / planted_of:.1%}); "
        f"somebody blamed wrongly: {wrong_of} of {total} (upper bound "
        f"{upper_bound(wrong_of, total):.1%}), where nobody was to blame {false_of} of {clean_of} "
        f"({upper_bound(false_of, clean_of):.1%})"
    )
