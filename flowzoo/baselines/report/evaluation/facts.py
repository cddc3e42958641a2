"""Figures of a page about one evaluation, or about two on the same problems."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowzoo.agents.evaluation.comparison import check_pair, paired_comparison
from flowzoo.agents.evaluation.intervals import RATES, mean_interval, values_share
from flowzoo.agents.evaluation.protocol import protocol_line
from flowzoo.agents.evaluation.summary import attempts_of, mean, means_by, tokens_per
from flowzoo.baselines.report.evaluation.data import EvaluationData
from flowzoo.baselines.report.findings import Facts
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.errors import UsageError

REPLY_RATES = ("role_score", "score", "strict", "truncated")
"""Measures of replies by their length."""
BINS = 5
"""Most bins of replies by their length."""
FEWEST_REPLIES = 5
"""Least number of replies of a bin; a smaller one joins the next, or the last the one before."""


def evaluation_facts(data: EvaluationData) -> dict[str, Any]:
    """Figures of one evaluation.

    Returns:
        The summary with `name`, `finished`, `protocol_line` (None: not finished), `role_names`,
        `levels` (rows by level of the problem; empty where no level is stated) and `lengths` (rows
        by role and length of the reply, from `low` to `high`, `unit` tokens or characters; `rates`
        are means with the ends of their 95 % intervals by measure; None: no reply has it).
    """
    protocol = data.summary.get("protocol") if data.finished else None
    return {
        **data.summary,
        "name": data.name,
        "finished": data.finished,
        "protocol_line": protocol_line(protocol) if protocol else None,
        "role_names": data.roles,
        "levels": [_level(level, rows) for level, rows in by_level(data.records).items()],
        "lengths": [row for role in data.roles for row in _lengths(role, data.records)],
    }


def comparison_facts(data: EvaluationData, other: EvaluationData) -> dict[str, Any]:
    """Differences of `data` to `other`, by `paired_comparison`.

    A problem's score is the mean over its episodes, also where the evaluations voted.

    Returns:
        `sides` (the `evaluation_facts` of both), `paired`, and `levels` with the same of every
        level.

    Raises:
        UsageError: an evaluation is not finished, or they are not on the same problems.
    """
    for side in (data, other):
        if not side.finished:
            raise UsageError(
                f"{side.folder} holds an evaluation that is not finished: repeat its command, then "
                "compare"
            )
    check_pair(data.summary["protocol"], other.folder)
    before, after = (
        means_by((record.problem, record.score) for record in side.records)
        for side in (other, data)
    )
    levels = by_level(data.records)
    names = {level: {row.problem for row in rows} for level, rows in levels.items()}
    return {
        "sides": [evaluation_facts(data), evaluation_facts(other)],
        "paired": paired_comparison(before, after),
        "levels": [
            {"level": level, **paired_comparison(before, {name: after[name] for name in problems})}
            for level, problems in names.items()
            if problems & before.keys()
        ],
    }


def by_level(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """Episodes by level of their problem, in order; empty if no level is stated."""
    levels: dict[str, list[EpisodeRecord]] = {}
    for record in records:
        levels.setdefault(level_of(record), []).append(record)
    order = sorted(levels, key=lambda level: (not level.isdecimal(), level.zfill(9)))
    return {} if set(levels) == {""} else {level: levels[level] for level in order}


def level_of(record: EpisodeRecord) -> str:
    """Level of an episode's problem; empty: none."""
    return "" if record.level is None else str(record.level)


def _level(level: str, records: Sequence[EpisodeRecord]) -> Facts:
    calls = [call for record in records for call in record.calls]
    scores = [[record.score for record in group] for group in attempts_of(records).values()]
    return {
        "level": level,
        "problems": len(scores),
        "episodes": len(records),
        "accuracy": mean([record.score for record in records]),
        "interval": mean_interval(scores),
        "strict": mean([float(call.strict) for call in calls]),
        "truncated": mean([float(call.finish == "length") for call in calls]),
        "tokens": tokens_per((call.output_tokens for call in calls), len(records)),
    }


def _lengths(role: str, records: Sequence[EpisodeRecord]) -> list[Facts]:
    # Replies of one length stay together, so the bins between quantiles differ in size.
    pairs = [(record, call) for record in records for call in record.calls if call.role == role]
    counts = [call.output_tokens for _, call in pairs]
    tokens = [count for count in counts if count is not None]
    counted = len(tokens) == len(counts)
    sizes = np.array(tokens if counted else [len(call.reply) for _, call in pairs])
    edges = np.unique(np.quantile(sizes, np.linspace(0, 1, BINS + 1)[1:], method="higher"))
    start, limits = 0, list[int]()
    for edge in edges.tolist():
        end = int((sizes <= edge).sum())
        if end - start >= FEWEST_REPLIES:
            start = end
            limits.append(edge)
    bins = np.searchsorted(limits[:-1], sizes)  # the last bin has no end
    rows: list[Facts] = []
    for number in np.unique(bins):
        inside = [pair for pair, index in zip(pairs, bins, strict=True) if index == number]
        rows.append(
            {
                "role": role, "unit": "tokens" if counted else "characters",
                "low": int(sizes[bins == number].min()), "high": int(sizes[bins == number].max()),
                "replies": len(inside), "rates": _rates(inside),
            }
        )  # fmt: skip
    return rows


def _rates(pairs: Sequence[tuple[EpisodeRecord, Call]]) -> dict[str, list[float] | None]:
    values: dict[str, dict[str, list[float]]] = {name: {} for name in REPLY_RATES}
    for record, call in pairs:
        for name in REPLY_RATES:
            value = record.score if name == "score" else RATES[name](call)
            if value is not None:
                values[name].setdefault(record.problem, []).append(value)
    return {name: _mean_with_ends([*groups.values()]) for name, groups in values.items()}


def _mean_with_ends(groups: Sequence[Sequence[float]]) -> list[float] | None:
    if not groups:
        return None
    values = [value for group in groups for value in group]
    if min(values) < 0 or max(values) > 1:
        return [mean(values), *mean_interval(groups)]
    share = values_share(groups)
    return [share.share, share.low, share.high]
