"""Checking roles that stopped discriminating: evaluators, verifiers and aggregators."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.intervals import ShareInterval, Z, share_interval
from flowzoo.agents.evaluation.power import POWER_Z
from flowzoo.baselines.stats import findable, mean_and_error, share_change

Row = Mapping[str, Any]
Episode = Mapping[str, Any]
JudgeVerdict = Literal["rejects everything", "accepts everything", "none", "too few cases"]

BLIND, SEEING, BOUND = 0.2, 0.4, 1 / 3
FEWEST_CASES = 15  # cases of the last evaluation below which nothing is said
ONE_PLACE, PLACE_BOUND = 0.9, 0.8
ANSWERS = 0.95  # share of episodes whose score is the last role score of a role that answers

JUDGES: Mapping[str, Mapping[str, str]] = {
    "evaluator": {
        "right": "right answers", "wrong": "wrong answers", "accepted": "accepts",
        "rejected": "rejects",
    },
    "verifier": {
        "right": "sufficient evidence", "wrong": "insufficient evidence",
        "accepted": "calls enough", "rejected": "calls too little",
    },
}  # fmt: skip
"""Roles that judge, and the words for what they judge."""


ONE_VERDICT: Mapping[str, JudgeVerdict] = {
    "tpr": "rejects everything", "tnr": "accepts everything",
}  # fmt: skip
"""Verdict of a judge by the share that is low."""


class JudgeShares(NamedTuple):
    """Shares of a judging role with their intervals; None without cases."""

    role: str
    verdict: JudgeVerdict
    born: bool  # the verdict was the same at every evaluation, the first included
    tpr: ShareInterval | None
    tnr: ShareInterval | None  # shares of the last evaluation
    best_tpr: ShareInterval | None
    best_tnr: ShareInterval | None  # highest shares of the earlier evaluations
    best_step: int | None  # step of the highest value of the share that collapsed
    informed: tuple[float, float, float] | None  # TPR + TNR - 1 with its interval
    accepts: float | None  # share of the readable verdicts of the last evaluation that accept
    abstained: float | None  # share of its verdicts that are unreadable
    found_below: float | None
    """A share that has truly fallen to this is found with probability 0.8; None: none is."""


def judges(evaluations: Sequence[Row]) -> list[JudgeShares]:
    """Every judging role of the rows with an evaluation, the first of which is before training."""
    roles = JUDGES if len(evaluations) > 1 else ()
    return [judge for role in roles if (judge := _judge(evaluations, role)) is not None]


def _judge(evaluations: Sequence[Row], role: str) -> JudgeShares | None:
    courses = {kind: _course(evaluations, f"{role}_{kind}") for kind in ONE_VERDICT}
    tpr, tnr = (course[-1] for course in courses.values())
    last = [interval for interval in (tpr, tnr) if interval]
    if not last:
        return None
    verdict: JudgeVerdict = "none"
    born = False
    collapsed: int | None = None
    bests: dict[str, ShareInterval | None] = {}
    for kind, course in courses.items():
        tested = [
            (interval, int(row["step"]))
            for interval, row in zip(course[:-1], evaluations, strict=False)
            if interval and interval.of >= FEWEST_CASES
        ]
        best, step = max(tested, key=lambda pair: pair[0].share, default=(None, None))
        bests[kind], end = best, course[-1]
        fell = best and end and best.share >= SEEING and share_change(best, end)[2] < 0
        if fell and _is_low(end):
            verdict, collapsed = ONE_VERDICT[kind], step
        elif all(map(_is_low, course)):
            verdict, born = ONE_VERDICT[kind], True
    if verdict == "none" and max(interval.of for interval in last) < FEWEST_CASES:
        verdict = "too few cases"
    informed: tuple[float, float, float] | None = None
    if tpr and tnr:  # TPR - (1 - TNR): a difference of two shares
        false = ShareInterval(1 - tnr.share, 1 - tnr.high, 1 - tnr.low, tnr.of)
        informed = share_change(false, tpr)
    take = evaluations[-1].get
    right, wrong = (take(f"eval/share_of/{role}_{kind}", 0) for kind in ONE_VERDICT)
    accepted = take(f"eval/share/{role}_tpr", 0.0) * right
    accepted += (1 - take(f"eval/share/{role}_tnr", 1.0)) * wrong
    return JudgeShares(
        role, verdict, born, tpr, tnr, bests["tpr"], bests["tnr"], collapsed, informed,
        accepts=accepted / (right + wrong) if right + wrong else None,
        abstained=take(f"eval/share/{role}_abstained"),
        found_below=findable(min(interval.of for interval in last), BLIND, BOUND),
    )  # fmt: skip


def _course(evaluations: Sequence[Row], name: str) -> list[ShareInterval | None]:
    # An episode's verdicts resemble one another: a share counts as of no more cases than problems.
    intervals: list[ShareInterval | None] = []
    for row in evaluations:
        share = row.get(f"eval/share/{name}")
        cases = min(row.get(f"eval/share_of/{name}", 0), len(row["eval/scores"]))
        finite = share is not None and math.isfinite(share) and cases > 0
        intervals.append(share_interval(float(share), cases) if finite else None)
    return intervals


def _is_low(share: ShareInterval | None) -> bool:
    if share is None or share.of < FEWEST_CASES:
        return False
    return share.share <= BLIND and share.high < BOUND


def one_verdict(row: Row) -> list[tuple[str, str]]:
    """Judging roles with one verdict for everything at an evaluation, and a line about each."""
    lines: list[tuple[str, str]] = []
    for role, names in JUDGES.items() if row.get("eval/scores") else ():
        (right,), (wrong,) = (_course([row], f"{role}_{kind}") for kind in ONE_VERDICT)
        if right and wrong and (_is_low(right) or _is_low(wrong)):
            line = (
                f"{role}: {names['accepted']} {100 * right.share:.0f} % of the {names['right']} "
                f"and {names['rejected']} {100 * wrong.share:.0f} % of the {names['wrong']}: its "
                "verdict hardly depends on what it judges"
            )
            lines.append((role, line))
    return lines


class Chooser(NamedTuple):
    """Choices of a role among candidates."""

    role: str
    collapsed: bool
    always: bool  # one place has nearly all choices, and had them before training as well
    position: int  # position with most choices at the end, from 1
    candidates: int
    before: ShareInterval  # share of the choices that the position has before training
    after: ShareInterval
    found_above: float  # a place that truly has this share is found with probability 0.8


def chooser(first: Sequence[Episode], last: Sequence[Episode]) -> Chooser | None:
    """The choices of two evaluations, from 0; None where nothing was chosen, or too seldom."""
    # Only episodes whose choice is written by a role are looked at, not those with counted votes.
    chosen: list[list[int]] = []
    for episodes in (first, last):
        facts = [episode.get("facts", {}) for episode in episodes if _by_role(episode)]
        choices = [of_episode.get("chosen") for of_episode in facts]
        chosen.append([choice for choice in choices if isinstance(choice, int) and choice >= 0])
    if min(len(choices) for choices in chosen) < FEWEST_CASES:
        return None
    candidates = max(len(episode["calls"]) - 1 for episode in last)
    if candidates < 2:
        return None
    position, count = Counter(chosen[1]).most_common(1)[0]
    after = share_interval(count / len(chosen[1]), len(chosen[1]))
    before = share_interval(chosen[0].count(position) / len(chosen[0]), len(chosen[0]))
    constant = after.share >= ONE_PLACE and after.low > PLACE_BOUND
    changed = before.share < ONE_PLACE and share_change(before, after)[1] > 0
    missed = findable(len(chosen[1]), 1 - ONE_PLACE, 1 - PLACE_BOUND)
    return Chooser(
        role=next(episode["calls"][-1]["role"] for episode in last if _by_role(episode)),
        collapsed=constant and changed,
        always=constant and not changed,
        position=position + 1,
        candidates=candidates,
        before=before,
        after=after,
        found_above=1.0 if missed is None else 1 - missed,
    )


def _by_role(episode: Episode) -> bool:
    # The last call is alone in its phase: a role chose among the candidates.
    calls = episode["calls"]
    return len(calls) > 1 and sum(c["phase"] == calls[-1]["phase"] for c in calls) == 1


class LoopValue(NamedTuple):
    """Gain of a workflow over one of its members alone; fractions, with 95 % interval."""

    over: Literal["first attempt", "single candidate"]
    alone: float
    team: float
    mean: float
    low: float
    high: float
    n: int
    findable: float  # a difference of this size is found with probability 0.8


def loop_value(
    episodes: Sequence[Episode], candidates: str = "", answerer: str = ""
) -> LoopValue | None:
    """Score less that of the first attempt, or of a candidate at random, over problems.

    The first attempt is the fact `first_correct`, or the first reply of the role `answerer`.
    """
    # Both are of the same episodes, so that how good the members are does not matter.
    pairs: dict[str, list[tuple[float, float]]] = {}
    over: Literal["first attempt", "single candidate"] = "first attempt"
    for episode in episodes:
        alone = episode.get("facts", {}).get("first_correct")
        if alone is None and answerer and not candidates:
            alone = next(iter(_role_scores(episode, answerer)), None)
        elif alone is None:
            alone, over = _mean_role_score(episode, candidates), "single candidate"
        if alone is not None:
            pairs.setdefault(episode["problem"], []).append((float(alone), episode["score"]))
    means = np.array([np.mean(values, axis=0) for values in pairs.values()]).reshape(-1, 2)
    if len(means) < 2:
        return None
    gaps = means[:, 1] - means[:, 0]
    mean, error = mean_and_error(gaps)
    alone, team = means.mean(axis=0)
    return LoopValue(
        over, float(alone), float(team), mean, mean - Z * error, mean + Z * error, len(gaps),
        (Z + POWER_Z) * error,
    )  # fmt: skip


def candidate_role(episodes: Sequence[Episode]) -> str:
    """The role whose agents answer beside one another in a phase; "" where there is none."""
    for episode in episodes:
        phases: dict[int, list[str]] = {}
        for call in episode["calls"]:
            phases.setdefault(call["phase"], []).append(call["role"])
        for roles in phases.values():
            if len(roles) > 1 and len(set(roles)) == 1:
                return roles[0]
    return ""


def answering_role(episodes: Sequence[Episode]) -> str:
    """The role that answers in several turns: its last role score is the episode's; or ""."""
    roles = {call["role"] for episode in episodes for call in episode["calls"] if call.get("turn")}
    for role in sorted(roles):
        ends = [(scores[-1], episode["score"]) for episode in episodes
                if (scores := _role_scores(episode, role))]  # fmt: skip
        if ends and sum(last == score for last, score in ends) >= ANSWERS * len(ends):
            return role
    return ""


def _role_scores(episode: Episode, role: str) -> list[float]:
    return [
        float(call["role_score"])
        for call in episode["calls"]
        if call["role"] == role and call.get("role_score") is not None
    ]


def _mean_role_score(episode: Episode, role: str) -> float | None:
    scores = _role_scores(episode, role)
    complete = len(scores) == sum(call["role"] == role for call in episode["calls"])
    return sum(scores) / len(scores) if scores and complete else None
