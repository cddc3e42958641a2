"""Summaries of episodes: accuracy, tokens, roles (pure functions).

Conditional shares: the mean of an episode's fact over all episodes mixes how often there was
something to do with how often it was done. These shares are over the cases in which there was:

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

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.envs.records import Call, EpisodeRecord
from flowzoo.errors import UsageError
from flowzoo.files import read_json

KIND = "evaluation"
"""`kind` in the `run.json` of an evaluation."""


def is_evaluation(folder: Path) -> bool:
    """Tell whether `folder` is one that `flowzoo eval --out` wrote."""
    try:
        record = read_json(folder / "run.json")
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("kind") == KIND


def refuse_evaluation(folder: Path, remedy: str) -> None:
    """Raise `UsageError`, with the remedy, where a training run is meant and an evaluation is."""
    if is_evaluation(folder):
        raise UsageError(
            f"{folder} holds an evaluation of `flowzoo eval`, no training run: {remedy}"
        )


INDICES = ("chosen",)
"""Facts that are indices, whose means are not shown."""
FEWEST_SEEDS = 10
"""Seeds whose spread says how much one of them may be off (arXiv:2504.07086)."""
PASSED = 0.5
"""A judge's score, or a role score, that counts as a pass."""


def judge_summary(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Verdicts of judges, and their agreement with the truth; empty without verdicts.

    Returns:
        `verdicts` and `unreadable` (numbers), `score` (mean of the readable ones); of the readable
        ones whose reply has a role score: `compared` (number), `agreement` (share on the same side
        of 0.5), `passed` and `right` (shares that the judge, and the role score, put at 0.5 or
        more).
    """
    rows = [judgment for record in records for judgment in record.judgments]
    if not rows:
        return {}
    scored = [(row.score, row.truth) for row in rows if row.score is not None]
    summary: dict[str, float] = {"verdicts": len(rows), "unreadable": len(rows) - len(scored)}
    if scored:
        summary["score"] = mean([score for score, _ in scored])
    pairs = [(score >= PASSED, truth >= PASSED) for score, truth in scored if truth is not None]
    if pairs:
        summary |= {
            "compared": len(pairs),
            "agreement": mean([passed == right for passed, right in pairs]),
            "passed": mean([passed for passed, _ in pairs]),
            "right": mean([right for _, right in pairs]),
        }
    return summary


def kappa(agreement: float, passed: float, right: float) -> str:
    """Agreement beyond chance, 1.00 for a perfect judge; undefined where chance alone agrees.

    Source: Cohen, Educ. Psychol. Meas. 20 (1960) 37.
    """
    chance = passed * right + (1 - passed) * (1 - right)
    return f"{(agreement - chance) / (1 - chance):.2f}" if chance < 1 else "undefined"


class Proportion(NamedTuple):
    """A share and the number of cases it is of."""

    share: float
    of: int


_SHARES: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "evaluator_tpr": (["true_accept"], ["true_accept", "false_reject"]),
    "evaluator_tnr": (["true_reject"], ["true_reject", "false_accept"]),
    "evaluator_abstained": (
        ["abstained"],
        ["true_accept", "false_accept", "true_reject", "false_reject", "abstained"],
    ),
    "verifier_tpr": (["true_yes"], ["true_yes", "false_no"]),
    "verifier_tnr": (["true_no"], ["true_no", "false_yes"]),
    "any_correct": (["any_correct"], []),
    "contested": (["contested"], []),
    "aggregator_recovery": (["recovered"], ["contested"]),
    "refinement_recovery": (["recovered"], ["not first_correct"]),
    "refinement_regression": (["regressed"], ["first_correct"]),
}
"""Facts whose sums are the hits and the cases of a share; no cases: every episode is one."""


def role_shares(
    records: Sequence[EpisodeRecord], names: Iterable[str] = tuple(_SHARES)
) -> dict[str, Proportion]:
    """The shares of the module's table that `records` have cases for, in its order."""
    shares: dict[str, Proportion] = {}
    for name in names:
        hits, cases = _SHARES[name]
        needed = {fact.removeprefix("not ") for fact in (*hits, *cases)}
        stated = [
            record.facts
            for record in records
            if all(isinstance(record.facts.get(fact), int) for fact in needed)  # or a truth value
        ]
        total = _sum(stated, cases) if cases else len(stated)
        if total:
            shares[name] = Proportion(_sum(stated, hits) / total, total)
    return shares


def _sum(episodes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    return sum(
        not facts[name.removeprefix("not ")] if name.startswith("not ") else facts[name]
        for facts in episodes
        for name in names
    )


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def means_by(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean of the values under every name, in order of first appearance."""
    groups: dict[str, list[float]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return {name: mean(values) for name, values in groups.items()}


def stderr(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values; NaN of fewer than two."""
    count = len(values)
    if count < 2:
        return float("nan")
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (count - 1) / count)


def pass_at(samples: int, right: int, k: int) -> float:
    """Chance that at least one of `k` of the `samples` attempts is right, drawn without return.

    Source: arXiv:2107.03374, eq. 1 (unbiased).

    Raises:
        UsageError: `k` is larger than `samples`, or below 1.
    """
    if not 1 <= k <= samples:
        raise UsageError(f"pass@{k} needs {k} samples of a problem or more, got {samples}")
    return 1.0 - math.comb(samples - right, k) / math.comb(samples, k)


def seed_spread(records: Sequence[EpisodeRecord]) -> dict[str, float] | None:
    """Spread of the accuracy over seeds: the n-th episodes of all problems are seed n's.

    One seed alone moves small sets by 5 to 15 points (arXiv:2504.07086).

    Returns:
        `seeds`, and `std` (with `seeds - 1`), `low` and `high` of their accuracies; None: one seed.
    """
    by_seed = means_by((record.episode.rpartition("#")[2], record.score) for record in records)
    if len(by_seed) < 2:
        return None
    scores = list(by_seed.values())
    std = stderr(scores) * math.sqrt(len(scores))
    return {"seeds": len(scores), "std": std, "low": min(scores), "high": max(scores)}


def tokens_per(counts: Iterable[int | None], of: int) -> float | None:
    """Counted tokens divided by `of`; None: none were counted."""
    counted = [count for count in counts if count is not None]
    return sum(counted) / of if counted else None


def attempts_of(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """The episodes of each problem, in order of first appearance."""
    groups: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        groups.setdefault(record.problem, []).append(record)
    return groups


def problem_scores(records: Sequence[EpisodeRecord], names: Sequence[str] = ()) -> list[float]:
    """Mean score of each problem's episodes, in order of first appearance or that of `names`.

    A problem of `names` without episodes, whose verdicts are unknown, has the mean of the others.
    """
    scores = means_by((record.problem, record.score) for record in records)
    others = mean(list(scores.values()))
    return [scores.get(name, others) for name in names or scores]


WATCHED = ("any_correct", "evaluator_tpr", "evaluator_tnr", "verifier_tpr", "verifier_tnr")
"""Shares whose values by problem are recorded."""


def problem_values(
    records: Sequence[EpisodeRecord], names: Sequence[str] = ()
) -> dict[str, list[float | None]]:
    """Means of every problem by measure, in the order of `problem_scores`; None without a case.

    `role_score/ROLE` and `strict/ROLE` of a role's replies, and the shares of `WATCHED`.
    """
    groups = attempts_of(records)
    by_measure: dict[str, dict[str, float]] = {}
    for problem, group in groups.items():
        values: dict[str, list[float]] = {}
        for call in (call for record in group for call in record.calls):
            values.setdefault(f"strict/{call.role}", []).append(float(call.strict))
            if call.role_score is not None:
                values.setdefault(f"role_score/{call.role}", []).append(call.role_score)
        means = {name: mean(of) for name, of in values.items()}
        means |= {name: value.share for name, value in role_shares(group, WATCHED).items()}
        for name, value in means.items():
            by_measure.setdefault(name, {})[problem] = round(value, 4)
    return {
        name: [values.get(problem) for problem in names or groups]
        for name, values in sorted(by_measure.items())
    }


def has_pay(records: Sequence[EpisodeRecord]) -> bool:
    """True if scores are pay, not truth: every episode that scores its replies pays its agents."""
    scored = [
        record.pay
        for record in records
        if record.pay or any(call.role_score is not None for call in record.calls)
    ]
    return bool(scored) and all(scored)


def measure_name(pays: object) -> str:
    """The word for a mean score: `score` where scores are pay, else `accuracy`."""
    return "score" if pays else "accuracy"


def role_pay(records: Sequence[EpisodeRecord]) -> dict[str, list[float]]:
    """Pay of every role by problem, in the order of `problem_scores`: mean of episodes and agents.

    NaN where no agent of the role was paid; empty without pay (see `has_pay`).
    """
    if not has_pay(records):
        return {}
    role_of = {call.agent: call.role for record in records for call in record.calls}
    groups = attempts_of(records).values()
    paid = [[pair for record in group for pair in record.pay.items()] for group in groups]
    return {
        role: [mean([pay for agent, pay in pairs if role_of.get(agent) == role]) for pairs in paid]
        for role in sorted(set(role_of.values()))
    }


def paid_mean(values: Sequence[float]) -> float:
    """Mean of a role's pay over the problems in which it was paid."""
    return mean([value for value in values if not math.isnan(value)])


def pass_sizes(most: int) -> list[int]:
    """The k of pass@k for problems with `most` episodes: 1, 2, 4 … and `most`."""
    return sorted({2**power for power in range(most.bit_length())} | {most}) if most else []


def attempt_values(records: Sequence[EpisodeRecord]) -> dict[str, list[float]]:
    """Every problem's own `avg@k` and `pass@1`, `pass@2` … `pass@k`; k: its fewest episodes."""
    groups = list(attempts_of(records).values())
    most = min((len(group) for group in groups), default=0)
    right = [sum(record.score >= 1.0 for record in group) for group in groups]
    values = {f"avg@{most}": problem_scores(records)}
    for k in pass_sizes(most):
        pairs = zip(groups, right, strict=True)
        values[f"pass@{k}"] = [pass_at(len(group), count, k) for group, count in pairs]
    return values


def solve_shares(records: Sequence[EpisodeRecord]) -> dict[str, float]:
    """Shares of the problems whose episodes are all wrong, all right, and partly right."""
    right = [[record.score >= 1.0 for record in group] for group in attempts_of(records).values()]
    count = max(1, len(right))
    none, every = (sum(map(test, right)) for test in (lambda group: not any(group), all))
    return {
        "solve_none": none / count,
        "solve_all": every / count,
        "solve_partial": (len(right) - none - every) / count,
    }


def attempt_summary(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Means of `attempt_values`, `stderr` of the accuracy over problems, and `seed_spread`."""
    groups = attempts_of(records).values()
    return {
        "problems": len(groups),
        "samples": min((len(group) for group in groups), default=0),
        "stderr": stderr(problem_scores(records)),
        "seed_spread": seed_spread(records),
        **{name: mean(values) for name, values in attempt_values(records).items()},
    }


def critical_path(calls: Sequence[Call], lengths: Sequence[float | None]) -> float | None:
    """Length of an episode: the longest call of every phase, added up; None: one is not known.

    The calls of a phase run at the same time, and each phase waits for the one before.
    """
    longest: dict[int, float] = {}
    for call, length in zip(calls, lengths, strict=True):
        if length is None:
            return None
        longest[call.phase] = max(length, longest.get(call.phase, 0.0))
    return sum(longest.values()) if longest else None


def path_tokens(records: Sequence[EpisodeRecord]) -> float | None:
    """Mean critical path in output tokens, of the episodes whose tokens were all counted."""
    calls = [record.calls for record in records]
    paths = (critical_path(each, [call.output_tokens for call in each]) for each in calls)
    lengths = [path for path in paths if path is not None]
    return mean(lengths) if lengths else None


def role_summary(calls: Sequence[Call]) -> dict[str, float | None]:
    """Means over one role's calls (at least one): rewards, parse rates, role scores, lengths.

    `reward_std` is the population deviation, `role_score` of the calls that have one, `tokens` and
    `tokens_p95` of the replies whose tokens were counted (None: none); `truncated` is the share of
    replies that ran into their length limit, `shortened` that of prompts over their budget.
    """
    import numpy as np  # late: help needs no arrays

    role_scores = [call.role_score for call in calls if call.role_score is not None]
    rewards = [call.reward for call in calls]
    lengths = [call.output_tokens for call in calls if call.output_tokens is not None]
    return {
        "calls": float(len(calls)),
        "reward": mean(rewards),
        "reward_std": float(np.std(rewards)),
        "strict": mean([float(call.strict) for call in calls]),
        "lenient": mean([float(call.lenient) for call in calls]),
        "role_score": mean(role_scores),
        "tokens": mean(lengths) if lengths else None,
        "tokens_p95": float(np.quantile(lengths, 0.95)) if lengths else None,
        "truncated": mean([float(call.finish == "length") for call in calls]),
        "shortened": mean([float(call.shortened > 0) for call in calls]),
    }


def summarize(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Totals of `records`.

    Returns:
        `episodes`, `accuracy` (mean score), `right` (episodes with score 1), `calls` (mean per
        episode), `tokens` (mean counted output tokens per episode; None if none were counted),
        `prompt_tokens` (likewise), `path_tokens` (see there), `uncounted` (calls without counted
        output tokens, scripted ones left out), `facts` (mean of every fact that is a number or a
        truth value, over the episodes that state it), `shares` (name -> `share` and the number of
        cases it is `of`, see `flowzoo.agents.evaluation.summary`), `judge` (see `judge_summary`),
        `roles` (see `role_summary`), the fields of `attempt_summary`, and `pay` (mean pay of every
        role; only where scores are pay, see `has_pay`).
    """
    calls = [call for record in records for call in record.calls]
    roles = sorted({call.role for call in calls})
    facts: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.facts.items():
            if isinstance(value, (bool, int, float)):
                facts.setdefault(name, []).append(float(value))
    count = max(1, len(records))
    pay = {role: paid_mean(values) for role, values in role_pay(records).items()}
    return {
        **({"pay": pay} if pay else {}),
        "episodes": len(records),
        "accuracy": mean([record.score for record in records]),
        "right": sum(record.score >= 1.0 for record in records),
        "calls": len(calls) / count,
        "tokens": tokens_per((call.output_tokens for call in calls), count),
        "prompt_tokens": tokens_per((call.prompt_tokens for call in calls), count),
        "path_tokens": path_tokens(records),
        "uncounted": sum(c.output_tokens is None and c.finish != "scripted" for c in calls),
        **attempt_summary(records),
        "facts": {name: mean(values) for name, values in sorted(facts.items())},
        "shares": {name: share._asdict() for name, share in role_shares(records).items()},
        "judge": judge_summary(records),
        "roles": {role: role_summary([c for c in calls if c.role == role]) for role in roles},
    }
