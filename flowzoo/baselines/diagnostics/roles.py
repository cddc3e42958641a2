"""Tests of roles: every role against itself, before training and at its best evaluation."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.intervals import ShareInterval, share_interval
from flowzoo.agents.evaluation.power import POWER_Z
from flowzoo.agents.evaluation.summary import mean, means_by
from flowzoo.baselines.diagnostics.checkers import JUDGES, Episode, Row
from flowzoo.baselines.stats import findable, share_change

RoleCode = Literal[
    "never read", "never right", "lost skill", "nobody asks", "says the same", "a copy",
    "a single agent", "lost form", "loops", "fits no prompt",
]  # fmt: skip
"""Codes of the tests, by which the failures of a matrix refer to their findings."""
GIVEN: Mapping[str, str] = {
    "aggregator": "any_correct", "synthesizer": "any_correct", "answerer": "evidence",
}  # fmt: skip
"""Roles that work on what others wrote: the fact without which they cannot be right."""
OTHERS_WORK = ("orchestrator",)
"""Roles whose role score is a mean of other roles' scores."""

FEWEST = 20  # problems, replies or right answers below which nothing is said
LOST = 0.15  # fall of a role's own accuracy that is called
ASKED = 0.05
SAME, SAME_BOUND = 0.9, 0.8
KINDS = 10
BORN = 0.05  # share of readable or right replies below which a role was dead from the start
FORM_LOST = 0.2  # fall of the share of readable replies that is called
LOOPING = 0.2  # share of looping replies that is called
LONGEST_PERIOD, LOOP_LEAST = 64, 48  # characters of what is repeated, and of all repetitions
RETRIEVED, RETRIEVED_LOST = 0.3, 0.25  # retrieval accuracy at first, and its fall, that are called
WEAK = 0.2  # own accuracy below which replies that fit no prompt are a failure
MOST_PROMPTS = 64


class RoleTest(NamedTuple):
    """One test of one role, in shares."""

    role: str
    kind: RoleCode
    positive: bool
    before: float
    """At the role's best evaluation (of skill, form, and what never was), else before training."""
    after: float
    change: float
    low: float
    high: float
    """Interval of the change: 95 %, for skill and form over all roles and evaluations together."""
    n: int
    step: int = 0  # step of `before`
    findable: float | None = None
    """A fall of this size (of skill), or a share of this much (others), is found with probability
    0.8; None: none is. Of what never was, the upper end of the highest share's interval."""
    other: str = ""  # whom it copies, or who answers alone


# -- what a role had to work with ------------------------------------------------------------------


def own_score(episode: Episode, call: Row) -> float | None:
    """Role score of a saved call; None if it says nothing about the role itself.

    An aggregator without a right candidate has no skill to show, and an orchestrator's score is
    that of its workers.
    """
    role, score = call["role"], call.get("role_score")
    given = role not in GIVEN or episode.get("facts", {}).get(GIVEN[role], True)
    return None if score is None or not given or role in OTHERS_WORK else float(score)


def role_course(
    evaluations: Sequence[Row], measure: str, role: str
) -> tuple[list[float], list[int]]:
    """Mean of a role's measure at every evaluation, NaN without one, and its number of cases."""
    # An episode's calls resemble one another: no more cases than problems.
    values = [row.get(f"eval/{measure}/{role}", math.nan) for row in evaluations]
    cases = [min(row.get(f"eval/calls/{role}", 0), len(row["eval/scores"])) for row in evaluations]
    return values, cases


def role_calls(
    episodes: Iterable[Episode], role: str, *, opening: bool = False
) -> Iterator[tuple[Episode, Row]]:
    """The calls of a role with their episodes; `opening`: of its agents' first turns alone."""
    for episode in episodes:
        for call in episode["calls"]:
            if call["role"] == role and not (opening and call.get("turn", 0)):
                yield episode, call


# -- over all evaluations --------------------------------------------------------------------------


def best_steps(evaluations: Sequence[Row], roles: Sequence[str]) -> dict[str, int]:
    """Place of each role's best evaluation before the last, by its mean own accuracy."""
    indices: dict[str, int] = {}
    for role in roles:
        course = [row.get(f"eval/role_score/{role}", math.nan) for row in evaluations[:-1]]
        if np.isfinite(course).any():
            indices[role] = int(np.nanargmax(course))
    return indices


def never_read(evaluations: Sequence[Row], role: str) -> RoleTest | None:
    """Test whether hardly a reply could be read at any evaluation."""
    return _throughout("never read", evaluations, role, "strict")


def never_right(evaluations: Sequence[Row], role: str) -> RoleTest | None:
    """Test whether a role's own score was 0, or nearly, at every evaluation."""
    if role in JUDGES or role in OTHERS_WORK:
        return None
    if role in GIVEN:
        rows = (_where_given(row, role) for row in evaluations)
        # At other evaluations it had hardly anything to be right with.
        evaluations = [
            row for row in rows if role_course([row], "role_score", role)[1][0] >= FEWEST
        ]
    return _throughout("never right", evaluations, role, "role_score")


def _where_given(row: Row, role: str) -> Row:
    # The metrics of an evaluation with a role's score and calls in the episodes in which it could
    # be right.
    score, calls = f"eval/role_score/{role}", f"eval/calls/{role}"
    share = row.get(f"eval/fact/{GIVEN[role]}", 1.0)
    cases = min(row.get(calls, 0), len(row["eval/scores"]))
    given = min(row.get(score, math.nan) / share, 1.0) if share else math.nan
    return {**row, score: given, calls: cases * share}


def _throughout(
    kind: RoleCode, evaluations: Sequence[Row], role: str, measure: str
) -> RoleTest | None:
    shares, cases = role_course(evaluations, measure, role)
    if len(evaluations) < 2 or not np.isfinite(shares).all() or min(cases) < FEWEST:
        return None
    top = int(np.argmax(shares))
    bound = share_interval(float(shares[top]), cases[top]).high
    ends = (share_interval(shares[index], cases[index]) for index in (0, -1))
    return _share_test(role, kind, *ends)._replace(
        positive=shares[top] <= BORN, before=shares[top], step=int(evaluations[top]["step"]),
        n=int(sum(cases)), findable=bound,
    )  # fmt: skip


def lost_form(evaluations: Sequence[Row], role: str, comparisons: int) -> RoleTest | None:
    """Fall of the share of a role's replies that the strict parser reads, from its best."""
    shares, cases = role_course(evaluations, "strict", role)
    earlier = np.where(np.array(cases[:-1]) >= FEWEST, shares[:-1], np.nan)
    if not np.isfinite(earlier).any() or cases[-1] < FEWEST or not math.isfinite(shares[-1]):
        return None
    top, z = int(np.nanargmax(earlier)), _joint_z(comparisons)
    ends = (share_interval(shares[index], cases[index], z) for index in (top, -1))
    test = _share_test(role, "lost form", *ends)
    return test._replace(
        positive=test.change <= -FORM_LOST and test.high < 0, step=int(evaluations[top]["step"])
    )


# -- between two evaluations -----------------------------------------------------------------------


def lost_skill(
    best: Sequence[Episode], last: Sequence[Episode], role: str, step: int, comparisons: int
) -> RoleTest | None:
    """Fall of a role's own accuracy from the episodes of its best evaluation to the last one."""
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
    z = _joint_z(comparisons)
    error = max(float(gaps.std(ddof=1)), 1 / math.sqrt(len(gaps))) / math.sqrt(len(gaps))
    change = float(gaps.mean())
    after = before + change
    dead = change <= -LOST and after <= before / 2 and change + z * error < 0
    return RoleTest(
        role, "lost skill", dead, before, after, change, max(-1.0, change - z * error),
        min(1.0, change + z * error), len(gaps), step, max(LOST, (z + POWER_Z) * error),
    )  # fmt: skip


def no_longer_asked(first: Sequence[Episode], last: Sequence[Episode], role: str) -> RoleTest:
    """Fall of the share of episodes in which a role is asked."""
    before, after = (
        _share(any(call["role"] == role for call in episode["calls"]) for episode in episodes)
        for episodes in (first, last)
    )
    test = _share_test(role, "nobody asks", before, after)
    return test._replace(positive=before.share >= 0.5 and after.share < ASKED and test.high < 0)


def became_constant(
    first: Sequence[Episode], last: Sequence[Episode], role: str
) -> RoleTest | None:
    """Rise of the most frequent reply; None for judges, and where few kinds of reply were given."""
    replies = [_opening_replies(episodes, role) for episodes in (first, last)]
    if role in JUDGES or min(map(len, replies)) < FEWEST or len(set(replies[0])) < KINDS:
        return None
    common = Counter(replies[1]).most_common(1)[0][0]
    frequent = Counter(replies[0]).most_common(1)[0][0]
    before, after = (
        _share(reply == text for reply in part)
        for part, text in zip(replies, (frequent, common), strict=True)
    )
    return _same(role, "says the same", before, after)


def became_copy(first: Sequence[Episode], last: Sequence[Episode], role: str) -> RoleTest | None:
    """Rise of the share of replies that repeat another role, the one whom it repeats most."""
    others: Counter[str] = Counter()
    shares: list[ShareInterval] = []
    for episodes in (first, last):
        copied = [agent for episode in episodes for agent in _copies(episode, role)]
        problems = len({episode["problem"] for episode in episodes})
        if problems < FEWEST or not copied:
            return None
        others = Counter(filter(None, copied))
        shares.append(share_interval(others.total() / len(copied), min(len(copied), problems)))
    other = others.most_common(1)[0][0] if others else ""
    return _same(role, "a copy", *shares)._replace(other=other)


def became_alone(first: Sequence[Episode], last: Sequence[Episode]) -> RoleTest | None:
    """Rise of right answers without a right candidate, where the team's facts tell of these."""
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
    return _same("", "a single agent", *shares)._replace(other=last[0]["calls"][-1]["role"])


def began_looping(first: Sequence[Episode], last: Sequence[Episode], role: str) -> RoleTest | None:
    """Rise of the share of a role's replies of which half repeats one text over and over."""
    shares: list[ShareInterval] = []
    for episodes in (first, last):
        replies = [call["reply"] for _, call in role_calls(episodes, role)]
        if len(replies) < FEWEST:
            return None
        loops = sum(map(is_looping, replies)) / len(replies)
        shares.append(share_interval(loops, min(len(replies), len(episodes))))
    test = _share_test(role, "loops", *shares)
    called = test.after >= LOOPING and test.change >= LOOPING / 2 and test.low > 0
    return test._replace(positive=called)


def fits_no_prompt(first: Sequence[Episode], last: Sequence[Episode], role: str) -> RoleTest | None:
    """Fall of the accuracy with which a reply's words and numbers tell its own prompt from others.

    No model is asked: a reply is compared with the problems by the rare words and numbers that
    they share (weighted by inverse document frequency). Source of the question: template collapse,
    arXiv 2604.06268.
    """
    before, after = retrieval(first, role), retrieval(last, role)
    if before is None or after is None:
        return None
    test = _share_test(role, "fits no prompt", before, after)
    strayed = before.share >= RETRIEVED and test.change <= -RETRIEVED_LOST and test.high < 0
    # Terse right answers share no word with their problem.
    scores = [score for pair in role_calls(last, role) if (score := own_score(*pair)) is not None]
    return test._replace(positive=strayed and bool(scores) and mean(scores) <= WEAK)


# -- what a reply says -----------------------------------------------------------------------------


def is_looping(reply: str) -> bool:
    """True if a text of at most 64 characters, repeated four times or more, is half of a reply."""
    codes = np.frombuffer(reply[-4000:].encode("utf-32-le", "surrogatepass"), np.uint32)
    least = max(LOOP_LEAST, len(codes) // 2)
    for period in range(1, min(LONGEST_PERIOD, len(codes) // 4) + 1):
        breaks = np.flatnonzero(codes[period:] != codes[:-period])
        edges = np.concatenate(([-1], breaks, [len(codes) - period]))
        longest = int(np.diff(edges).max()) - 1
        if longest >= least and longest >= 3 * period:
            return True
    return False


def retrieval(episodes: Sequence[Episode], role: str) -> ShareInterval | None:
    """Share of a role's first replies that share most with their own problem among others."""
    calls = (next(role_calls([episode], role), None) for episode in episodes)
    pairs = [
        (_words(pair[0]["text"]), _words(pair[1]["reply"])) for pair in calls if pair is not None
    ][:MOST_PROMPTS]
    if len(pairs) < FEWEST:
        return None
    documents = Counter(word for terms, _ in pairs for word in terms)
    weights = {word: math.log(len(pairs) / count) for word, count in documents.items()}
    hits = 0.0
    for number, (_, reply) in enumerate(pairs):
        likeness = [sum(weights[word] for word in terms & reply) for terms, _ in pairs]
        best = max(likeness)
        if likeness[number] == best:
            hits += 1 / likeness.count(best)
    return share_interval(hits / len(pairs), len(pairs))


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|\d+", str(text).lower()))


def _opening_role_scores(episodes: Sequence[Episode], role: str) -> dict[str, float]:
    calls = role_calls(episodes, role, opening=True)
    scored = ((episode["problem"], own_score(episode, call)) for episode, call in calls)
    return means_by((problem, score) for problem, score in scored if score is not None)


def _opening_replies(episodes: Sequence[Episode], role: str) -> list[str]:
    # One reply a problem: that of the role's first agent, in its first turn.
    replies: dict[str, str] = {}
    for episode, call in role_calls(episodes, role, opening=True):
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


# -- shares and their change -----------------------------------------------------------------------


def _joint_z(comparisons: int) -> float:
    # Quantile of a two-sided 95 % interval that holds for all comparisons together (Bonferroni).
    return NormalDist().inv_cdf(1 - 0.05 / (2 * max(1, comparisons)))


def _share(cases: Iterable[bool]) -> ShareInterval:
    values = list(cases)
    return share_interval(sum(values) / len(values), len(values))


def _share_test(role: str, kind: RoleCode, before: ShareInterval, after: ShareInterval) -> RoleTest:
    # A test of two shares, of which its kind says whether it is positive.
    change = share_change(before, after)
    return RoleTest(role, kind, False, before.share, after.share, *change, int(after.of))


def _same(role: str, kind: RoleCode, before: ShareInterval, after: ShareInterval) -> RoleTest:
    test = _share_test(role, kind, before, after)
    dead = after.share >= SAME and after.low > SAME_BOUND and before.share <= SAME / 2
    missed = findable(after.of, 1 - SAME, 1 - SAME_BOUND)
    return test._replace(
        positive=dead and test.low > 0, findable=None if missed is None else 1 - missed
    )
