"""Effects of evaluators, aggregators and refiners: conditional shares with their counts.

The mean of an episode's fact over all episodes mixes how often there was something to do with how
often it was done. These shares are over the cases in which there was:

    evaluator_tpr, verifier_tpr   right answers (sufficient evidence) that were accepted, of those
                                  with a readable verdict
    evaluator_tnr, verifier_tnr   wrong answers (insufficient evidence) that were rejected, likewise
    evaluator_abstained           unreadable verdicts, of all verdicts
    any_correct                   episodes with a right candidate: what an oracle would reach
    contested                     episodes whose candidates were partly right and partly wrong
    aggregator_recovery           contested episodes that ended right
    refinement_recovery           episodes with a wrong first attempt whose last was right
    refinement_regression         episodes with a right first attempt whose last was wrong

Verdicts are counted one by one, however many an episode has. An episode whose workflow does not
state a fact (as a whole number or a truth value) counts nowhere; a share of no cases is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.envs import EpisodeRecord

_VERDICTS = ("true_accept", "false_accept", "true_reject", "false_reject", "abstained")


class Proportion(NamedTuple):
    """A share and the number of cases it is of."""

    share: float
    of: int


class _Kind(NamedTuple):
    """Counting rule of a share, for the facts of one episode."""

    needs: tuple[str, ...]
    hits: Callable[..., int]
    cases: Callable[..., int]


def _counts(hits: Sequence[str], cases: Sequence[str]) -> _Kind:
    """Sums of counted facts."""
    return _Kind(
        tuple(cases),
        lambda facts: sum(facts[name] for name in hits),
        lambda facts: sum(facts[name] for name in cases),
    )


_KINDS: Mapping[str, _Kind] = {
    "evaluator_tpr": _counts(["true_accept"], ["true_accept", "false_reject"]),
    "evaluator_tnr": _counts(["true_reject"], ["true_reject", "false_accept"]),
    "evaluator_abstained": _counts(["abstained"], _VERDICTS),
    "verifier_tpr": _counts(["true_yes"], ["true_yes", "false_no"]),
    "verifier_tnr": _counts(["true_no"], ["true_no", "false_yes"]),
    "any_correct": _Kind(("any_correct",), lambda f: f["any_correct"], lambda f: 1),
    "contested": _Kind(("contested",), lambda f: f["contested"], lambda f: 1),
    "aggregator_recovery": _Kind(
        ("contested", "recovered"), lambda f: f["recovered"], lambda f: f["contested"]
    ),
    "refinement_recovery": _Kind(
        ("first_correct", "recovered"), lambda f: f["recovered"], lambda f: not f["first_correct"]
    ),
    "refinement_regression": _Kind(
        ("first_correct", "regressed"), lambda f: f["regressed"], lambda f: f["first_correct"]
    ),
}


def role_shares(records: Sequence[EpisodeRecord]) -> dict[str, Proportion]:
    """The shares of the module's table that `records` have cases for, in its order."""
    shares: dict[str, Proportion] = {}
    for name, kind in _KINDS.items():
        stated = [record.facts for record in records if _states(record.facts, kind.needs)]
        cases = sum(int(kind.cases(facts)) for facts in stated)
        if cases:
            hits = sum(int(kind.hits(facts)) for facts in stated)
            shares[name] = Proportion(hits / cases, cases)
    return shares


def _states(facts: Mapping[str, Any], names: Sequence[str]) -> bool:
    return all(isinstance(facts.get(name), int) for name in names)  # a truth value is one, too
