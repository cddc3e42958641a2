"""Form signatures: surface features of a role's replies, and distances between roles."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Literal

import numpy as np

from flowzoo.agents.evaluation.summary import mean
from flowzoo.aliases import Floats
from flowzoo.envs.records import Call

Surface = Literal["verdict", "bare_verdict", "code", "other"]

FEATURES: tuple[str, ...] = ("boxed", "fence", "verdict", "terse", "length")
"""`boxed`, `fence`, `verdict`: the reply has a box, a code block, a verdict in its tag. `terse`: at
most `TERSE_TOKENS` tokens, one of them a box. `length`: natural logarithm of 1 + its tokens."""
TERSE_TOKENS = 30
BARE_VERDICT_WORDS = 4
"""A verdict with no more words than this beside it is bare: nothing was reviewed."""

_BOX = re.compile(r"\\boxed\s*\{")
_FENCE = re.compile(r"^\s*```", re.MULTILINE)
_VERDICT = re.compile(
    r"\\boxed\s*\{\s*(?:\\text\s*\{\s*)?(?:in)?correct\b[^{}]*\}+|<verify>\s*(?:yes|no)\s*</verify>",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")


def features(reply: str, tokens: int = 0) -> tuple[float, ...]:
    """The features of one reply, in the order of `FEATURES`."""
    # Where a policy reports no tokens, words are counted instead.
    tokens = tokens or len(reply.split())
    boxed = _BOX.search(reply) is not None
    return (
        float(boxed),
        float(_FENCE.search(reply) is not None),
        float(_VERDICT.search(reply) is not None),
        float(boxed and tokens <= TERSE_TOKENS),
        math.log1p(tokens),
    )


def feature_rows(replies: Iterable[tuple[str, int]]) -> Floats:
    """Features of replies with their numbers of tokens: (replies, features)."""
    rows = [features(reply, tokens) for reply, tokens in replies]
    return np.array(rows, np.float64).reshape(-1, len(FEATURES))


def surface(reply: str) -> Surface:
    """Form of an evaluator's reply: a reasoned verdict, a bare one, code, or other."""
    match = _VERDICT.search(reply)
    if match is None:
        return "code" if _FENCE.search(reply) else "other"
    rest = reply[: match.start()] + reply[match.end() :]
    return "bare_verdict" if len(_WORD.findall(rest)) <= BARE_VERDICT_WORDS else "verdict"


def jaccard_similarity(replies: Sequence[str]) -> float:
    """Mean Jaccard index of the word 3-grams of all pairs of `replies`; NaN of fewer than two."""
    grams = map(_grams, replies)
    return mean(
        [len(first & second) / len(first | second) for first, second in combinations(grams, 2)]
    )


def form_metrics(calls: Sequence[Call]) -> dict[str, float]:
    """Metrics of one step: `form/FEATURE/ROLE`, `form/likeness/ROLE`, `form/bare_verdict/ROLE`."""
    row: dict[str, float] = {}
    for role in sorted({call.role for call in calls}):
        role_calls = [call for call in calls if call.role == role]
        means = feature_rows((call.reply, len(call.output_ids)) for call in role_calls).mean(axis=0)
        row |= {
            f"form/{name}/{role}": value
            for name, value in zip(FEATURES, means.tolist(), strict=True)
        }
        phases: dict[tuple[str, str, int], list[str]] = {}
        for call in role_calls:
            phases.setdefault((call.problem, call.episode, call.phase), []).append(call.reply)
        alike = [jaccard_similarity(replies) for replies in phases.values() if len(replies) > 1]
        if alike:
            row[f"form/likeness/{role}"] = mean(alike)
        kinds = Counter(surface(call.reply) for call in role_calls)
        judged = kinds["verdict"] + kinds["bare_verdict"]
        if judged:
            row[f"form/bare_verdict/{role}"] = kinds["bare_verdict"] / judged
    return row


def distances(signatures: Floats, target: Floats, scale: Floats) -> Floats:
    """Distances (any,) of signatures (any, features) to one, in standard deviations `scale`."""
    varying = scale > 0
    gaps = (signatures - target)[:, varying] / scale[varying]
    return np.sqrt(np.sum(gaps**2, axis=1))


def _grams(text: str) -> frozenset[tuple[str, ...]]:
    # Two replies too short for a 3-gram are alike if they are equal.
    tokens = _WORD.findall(text.lower())
    if len(tokens) < 3:
        return frozenset([tuple(tokens)])
    return frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False))
