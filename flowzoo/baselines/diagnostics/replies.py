"""Tests of a role's replies: readable, looping, or the same for every prompt."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.intervals import ShareInterval, share_interval
from flowzoo.baselines.diagnostics.skills import own_score, role_course
from flowzoo.baselines.stats import share_change

Episode = Mapping[str, Any]
Row = Mapping[str, Any]

FORM_LOST = 0.2  # fall of the share of readable replies that is called
LOOPING = 0.2  # share of looping replies that is called
LONGEST_PERIOD, LOOP_LEAST = 64, 48  # characters of what is repeated, and of all repetitions
RETRIEVED, RETRIEVED_LOST = 0.3, 0.25  # retrieval accuracy at first, and its fall, that are called
WEAK = 0.2  # own accuracy below which replies that fit no prompt are a failure
MOST_PROMPTS = 64
FEWEST = 20


class ShareShift(NamedTuple):
    """A share of a role's replies at two evaluations; `called` if the change is a failure."""

    role: str
    called: bool
    before: float
    after: float
    low: float
    high: float  # interval of the change, over all roles and evaluations together
    step: int  # step of `before`
    n: int


def lost_form(evaluations: Sequence[Row], role: str, comparisons: int) -> ShareShift | None:
    """Fall of the share of a role's replies that the strict parser reads, from its best."""
    shares, cases = role_course(evaluations, "strict", role)
    earlier = np.where(np.array(cases[:-1]) >= FEWEST, shares[:-1], np.nan)
    if not np.isfinite(earlier).any() or cases[-1] < FEWEST or not math.isfinite(shares[-1]):
        return None
    top = int(np.nanargmax(earlier))
    z = NormalDist().inv_cdf(1 - 0.05 / (2 * max(1, comparisons)))
    ends = [share_interval(shares[index], cases[index], z) for index in (top, -1)]
    change, low, high = share_change(*ends)
    return ShareShift(
        role, change <= -FORM_LOST and high < 0, shares[top], shares[-1], low, high,
        int(evaluations[top]["step"]), cases[-1],
    )  # fmt: skip


def began_looping(
    first: Sequence[Episode], last: Sequence[Episode], role: str
) -> ShareShift | None:
    """Rise of the share of a role's replies of which half repeats one text over and over."""
    shares: list[ShareInterval] = []
    for episodes in (first, last):
        replies = [
            call["reply"] for row in episodes for call in row["calls"] if call["role"] == role
        ]
        if len(replies) < FEWEST:
            return None
        loops = sum(map(is_looping, replies)) / len(replies)
        shares.append(share_interval(loops, min(len(replies), len(episodes))))
    change, low, high = share_change(*shares)
    called = shares[1].share >= LOOPING and change >= LOOPING / 2 and low > 0
    return ShareShift(
        role, called, shares[0].share, shares[1].share, low, high, 0, int(shares[1].of)
    )


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


def fits_no_prompt(
    first: Sequence[Episode], last: Sequence[Episode], role: str
) -> ShareShift | None:
    """Fall of the accuracy with which a reply's words and numbers tell its own prompt from others.

    No model is asked: a reply is compared with the problems by the rare words and numbers that
    they share (weighted by inverse document frequency). Source of the question: template collapse,
    arXiv 2604.06268.
    """
    shares: list[ShareInterval] = []
    for episodes in (first, last):
        accuracy = retrieval(episodes, role)
        if accuracy is None:
            return None
        shares.append(accuracy)
    change, low, high = share_change(*shares)
    strayed = shares[0].share >= RETRIEVED and change <= -RETRIEVED_LOST and high < 0
    return ShareShift(
        role, strayed and _is_weak(last, role), shares[0].share, shares[1].share, low, high, 0,
        int(shares[1].of),
    )  # fmt: skip


def retrieval(episodes: Sequence[Episode], role: str) -> ShareInterval | None:
    """Share of a role's first replies that share most with their own problem among others."""
    pairs = [
        (_words(row["text"]), _words(call["reply"]))
        for row in episodes
        if (call := _first_call(row, role)) is not None
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


def _first_call(episode: Episode, role: str) -> Mapping[str, Any] | None:
    return next((call for call in episode["calls"] if call["role"] == role), None)


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z]+|\d+", str(text).lower()))


def _is_weak(episodes: Sequence[Episode], role: str) -> bool:
    # Terse right answers share no word with their problem.
    scores = [
        score
        for row in episodes
        for call in row["calls"]
        if call["role"] == role and (score := own_score(row, call)) is not None
    ]
    return bool(scores) and sum(scores) / len(scores) <= WEAK
