"""Dead roles: each role compared with itself before training and at its best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.intervals import ShareInterval, share_interval
from flowzoo.baselines.diagnostics.checkers import JUDGES
from flowzoo.baselines.diagnostics.skills import GIVEN, OTHERS_WORK, own_score, role_course
from flowzoo.baselines.stats import findable, share_change

Episode = Mapping[str, Any]
Row = Mapping[str, Any]
Death = Literal["unread", "wrong", "skill", "unasked", "constant", "copy", "alone"]

LOST = 0.15
ASKED = 0.05
SAME, SAME_BOUND = 0.9, 0.8
KINDS = 10
BORN = 0.05  # share of readable or right replies below which a role was dead from the start
FEWEST = 20  # problems (or right answers) below which nothing is said
POWER = 0.8416  # 80 % quantile of the normal distribution


class RoleDeath(NamedTuple):
    """One test of one role, in shares."""

    role: str
    kind: Death
    positive: bool
    before: float
    """At the role's best evaluation (`skill`, `unread`, `wrong`), else before training."""
    after: float
    change: float
    low: float
    high: float  # interval of the change: 95 %, for `skill` over all roles and evaluations together
    step: int  # step of `before`
    n: int
    findable: float | None
    """A fall of this size (`skill`), or a share of this much (others), is found with probability
    0.8; None: none is. Of `unread` and `wrong` the upper end of the highest share's interval."""
    other: str = ""  # whom it copies, or who answers alone


def best_steps(evaluations: Sequence[Row], roles: Sequence[str]) -> dict[str, int]:
    """Place of each role's best evaluation before the last, by its mean own accuracy."""
    indices: dict[str, int] = {}
    for role in roles:
        course = [row.get(f"eval/role_score/{role}", math.nan) for row in evaluations[:-1]]
        if np.isfinite(course).any():
            indices[role] = int(np.nanargmax(course))
    return indices


def never_read(evaluations: Sequence[Row], role: str) -> RoleDeath | None:
    """`unread` of one role: hardly a reply could be read at any evaluation."""
    return _throughout("unread", evaluations, role, "strict")


def never_right(evaluations: Sequence[Row], role: str) -> RoleDeath | None:
    """`wrong` of one role: its own score was 0, or nearly, at every evaluation."""
    if role in JUDGES or role in OTHERS_WORK:
        return None
    if role in GIVEN:
        rows = (_where_given(row, role) for row in evaluations)
        # At other evaluations it had hardly anything to be right with.
        evaluations = [
            row for row in rows if role_course([row], "role_score", role)[1][0] >= FEWEST
        ]
    return _throughout("wrong", evaluations, role, "role_score")


def _where_given(row: Row, role: str) -> Row:
    # The metrics of an evaluation with a role's score and calls in the episodes in which it could
    # be right.
    score, calls = f"eval/role_score/{role}", f"eval/calls/{role}"
    share = row.get(f"eval/fact/{GIVEN[role]}", 1.0)
    cases = min(row.get(calls, 0), len(row["eval/scores"]))
    given = min(row.get(score, math.nan) / share, 1.0) if share else math.nan
    return {**row, score: given, calls: cases * share}


def _throughout(
    kind: Death, evaluations: Sequence[Row], role: str, measure: str
) -> RoleDeath | None:
    shares, cases = role_course(evaluations, measure, role)
    if len(evaluations) < 2 or not np.isfinite(shares).all() or min(cases) < FEWEST:
        return None
    top = int(np.argmax(shares))
    bound = share_interval(float(shares[top]), cases[top]).high
    change, low, high = share_change(
        share_interval(shares[0], cases[0]), share_interval(shares[-1], cases[-1])
    )
    return RoleDeath(
        role, kind, shares[top] <= BORN, shares[top], shares[-1], change, low, high,
        int(evaluations[top]["step"]), int(sum(cases)), bound,
    )  # fmt: skip


def lost_skill(
    best: Sequence[Episode], last: Sequence[Episode], role: str, step: int, comparisons: int
) -> RoleDeath | None:
    """`skill` of one role, from the episodes of its best evaluation and of the last one."""
    # `comparisons` is how many of roles and evaluations the best is chosen from. Judges are judged
    # by `checkers`.
    if role in JUDGES:
        return None
    first, second = _opening_role_scores(best, role), _opening_role_scores(last, role)
    both = sorted(first.keys() & second.keys())
    if len(both) < FEWEST:
        return None
    gaps = np.array([second[problem] - first[problem] for problem in both])
    before = float(np.mean([first[problem] for problem in both]))
    z = NormalDist().inv_cdf(1 - 0.05 / (2 * max(1, comparisons)))
    error = max(float(gaps.std(ddof=1)), 1 / math.sqrt(len(gaps))) / math.sqrt(len(gaps))
    change = float(gaps.mean())
    after = before + change
    dead = change <= -LOST and after <= before / 2 and change + z * error < 0
    return RoleDeath(
        role, "skill", dead, before, after, change, max(-1.0, change - z * error),
        min(1.0, change + z * error), step, len(gaps), max(LOST, (z + POWER) * error),
    )  # fmt: skip


def _opening_role_scores(episodes: Sequence[Episode], role: str) -> dict[str, float]:
    scores: dict[str, list[float]] = {}
    for episode in episodes:
        for call in episode["calls"]:
            if call["role"] == role and not call.get("turn", 0):
                score = own_score(episode, call)
                if score is not None:
                    scores.setdefault(episode["problem"], []).append(score)
    return {problem: sum(values) / len(values) for problem, values in scores.items()}


def no_longer_asked(first: Sequence[Episode], last: Sequence[Episode], role: str) -> RoleDeath:
    """`unasked` of one role."""
    before, after = (
        _share(any(call["role"] == role for call in episode["calls"]) for episode in episodes)
        for episodes in (first, last)
    )
    change, low, high = share_change(before, after)
    dead = before.share >= 0.5 and after.share < ASKED and high < 0
    return RoleDeath(
        role, "unasked", dead, before.share, after.share, change, low, high, 0, len(last), None
    )


def became_constant(
    first: Sequence[Episode], last: Sequence[Episode], role: str
) -> RoleDeath | None:
    """`constant` of one role; None for judges, and for roles with few kinds of reply at first."""
    replies = [_opening_replies(episodes, role) for episodes in (first, last)]
    if role in JUDGES or min(map(len, replies)) < FEWEST or len(set(replies[0])) < KINDS:
        return None
    common = Counter(replies[1]).most_common(1)[0][0]
    before = max(Counter(replies[0]).values()) / len(replies[0])
    shares = (
        share_interval(before, len(replies[0])),
        _share(reply == common for reply in replies[1]),
    )
    return _same(role, "constant", *shares)


def became_copy(first: Sequence[Episode], last: Sequence[Episode], role: str) -> RoleDeath | None:
    """`copy` of one role: the other role whom it repeats most."""
    others: Counter[str] = Counter()
    shares: list[ShareInterval] = []
    for episodes in (first, last):
        copied = [agent for episode in episodes for agent in _copies(episode, role)]
        if len({episode["problem"] for episode in episodes}) < FEWEST or not copied:
            return None
        problems = min(len(copied), len({episode["problem"] for episode in episodes}))
        others = Counter(agent for agent in copied if agent)
        shares.append(share_interval(sum(map(bool, copied)) / len(copied), problems))
    death = _same(role, "copy", *shares)
    return death._replace(other=others.most_common(1)[0][0] if others else "")


def became_alone(first: Sequence[Episode], last: Sequence[Episode]) -> RoleDeath | None:
    """`alone`: of the whole team, where its facts say whether a candidate was right."""
    shares: list[ShareInterval] = []
    for episodes in (first, last):
        right = [
            not episode["facts"]["any_correct"]
            for episode in episodes
            if episode["score"] >= 1 and episode.get("facts", {}).get("any_correct") is not None
        ]
        if len(right) < FEWEST:
            return None
        shares.append(_share(right))
    speaker = last[0]["calls"][-1]["role"]
    return _same("", "alone", *shares)._replace(other=speaker)


def _same(role: str, kind: Death, before: ShareInterval, after: ShareInterval) -> RoleDeath:
    change, low, high = share_change(before, after)
    dead = after.share >= SAME and after.low > SAME_BOUND and before.share <= SAME / 2 and low > 0
    missed = findable(after.of, 1 - SAME, 1 - SAME_BOUND)
    return RoleDeath(
        role, kind, dead, before.share, after.share, change, low, high, 0, int(after.of),
        None if missed is None else 1 - missed,
    )  # fmt: skip


def _share(cases: Iterable[bool]) -> ShareInterval:
    values = list(cases)
    return share_interval(sum(values) / len(values), len(values))


def _opening_replies(episodes: Sequence[Episode], role: str) -> list[str]:
    # One reply a problem: that of the role's first agent, in its first turn.
    replies: dict[str, str] = {}
    for episode in episodes:
        for call in episode["calls"]:
            if call["role"] == role and not call.get("turn", 0):
                replies.setdefault(episode["problem"], _plain(call["reply"]))
    return list(replies.values())


def _copies(episode: Episode, role: str) -> list[str]:
    # For each call of `role` the agent that it repeats word for word, or "".
    sources: list[str] = []
    first_agents: dict[str, str] = {}
    for call in episode["calls"]:
        text = _plain(call["reply"])
        if call["role"] == role:
            source = first_agents.get(text, "")
            sources.append("" if source == call["agent"] else source)
        first_agents.setdefault(text, call["agent"])
    return sources


def _plain(text: str) -> str:
    return " ".join(text.split())
