"""What a set of episodes amounts to: accuracy, tokens, and what each role did (pure functions)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowzoo.envs import Call, EpisodeRecord


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean; NaN of nothing."""
    return sum(values) / len(values) if values else float("nan")


def role_summary(calls: Sequence[Call]) -> dict[str, float]:
    """One role's calls: `calls`, `reward`, `strict`, `lenient`, `truth`, `tokens`, `truncated`.

    `truth` is the mean own truth over the calls that have one (NaN if none has); `tokens` is the
    mean reply length in tokens, 0 for policies that report none; `truncated` the share of replies
    that ran into their length limit.
    """
    truths = [call.truth for call in calls if call.truth is not None]
    return {
        "calls": float(len(calls)),
        "reward": mean([call.reward for call in calls]),
        "strict": mean([float(call.strict) for call in calls]),
        "lenient": mean([float(call.lenient) for call in calls]),
        "truth": mean(truths),
        "tokens": mean([float(len(call.output_ids)) for call in calls]),
        "truncated": mean([float(call.finish == "length") for call in calls]),
    }


def summarise(records: Sequence[EpisodeRecord]) -> dict[str, Any]:
    """Totals of `records`.

    Returns:
        `episodes`, `accuracy` (mean score), `right` (episodes with score 1), `calls` (mean per
        episode), `tokens` (mean output tokens per episode), `prompt_tokens` (likewise), `facts`
        (mean of every fact that is a number or a truth value), `roles` (see `role_summary`).
    """
    calls = [call for record in records for call in record.calls]
    roles = sorted({call.role for call in calls})
    facts: dict[str, list[float]] = {}
    for record in records:
        for name, value in record.facts.items():
            if isinstance(value, (bool, int, float)):
                facts.setdefault(name, []).append(float(value))
    count = max(1, len(records))
    return {
        "episodes": len(records),
        "accuracy": mean([record.score for record in records]),
        "right": sum(record.score >= 1.0 for record in records),
        "calls": len(calls) / count,
        "tokens": sum(len(call.output_ids) for call in calls) / count,
        "prompt_tokens": sum(len(call.prompt_ids) for call in calls) / count,
        "facts": {name: mean(values) for name, values in sorted(facts.items())},
        "roles": {
            role: role_summary([call for call in calls if call.role == role]) for role in roles
        },
    }
