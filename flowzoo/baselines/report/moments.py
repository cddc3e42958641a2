"""One problem before and after a run broke, with the replies of every role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from flowzoo.baselines.report.by_policy import by_policy
from flowzoo.baselines.report.transcripts import shorten
from flowzoo.baselines.run.reading import RunData, read_episodes


class MomentCall(TypedDict):
    """A reply, cut short."""

    agent: str
    role: str
    reply: str
    role_score: float | None


class MomentEpisode(TypedDict):
    """An episode's score and replies."""

    score: float | None
    answer: str | None
    calls: list[MomentCall]


class Moment(TypedDict):
    """One problem at two evaluations."""

    problem: str
    gold: str
    before: MomentEpisode
    after: MomentEpisode
    steps: list[int]


def run_moment(role: str, run: RunData, before: int, after: int) -> Moment | None:
    """One problem at two evaluations: the one in which the team, then the role, lost the most.

    None if no problem lost anything, or if the episodes are missing.
    """
    files, steps = run.transcript_files("eval"), run.steps
    if not {steps[before], steps[after]} <= files.keys():
        return None
    first, last = (by_policy(run, read_episodes(files[steps[index]])) for index in (before, after))
    earlier_rows = {row["problem"]: row for row in first}
    best: tuple[float, float] | None = None
    chosen: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
    for later in last:
        earlier = earlier_rows.get(later["problem"])
        if earlier is None:
            continue
        loss = _role_score(earlier, role) - _role_score(later, role)
        fell = (earlier["score"] or 0.0) - (later["score"] or 0.0)
        if max(fell, loss) > 0 and fell >= 0 and (best is None or (fell, loss) > best):
            best, chosen = (fell, loss), (earlier, later)
    if chosen is None:
        return None
    earlier, later = chosen
    return {
        "problem": shorten(str(later["problem"] if run.pays else later.get("text", ""))),
        "gold": shorten(str(later.get("gold", ""))),
        "before": _episode(earlier),
        "after": _episode(later),
        "steps": [steps[before], steps[after]],
    }


def _role_score(episode: Mapping[str, Any], role: str) -> float:
    values = [
        float(call["role_score"])
        for call in episode["calls"]
        if call["role"] == role and isinstance(call.get("role_score"), (int, float))
    ]
    return sum(values) / len(values) if values else 0.0


def _episode(episode: Mapping[str, Any]) -> MomentEpisode:
    answer = episode.get("answer")
    return {
        "score": episode.get("score"),
        "answer": None if answer is None else shorten(str(answer)),
        "calls": [
            {
                "agent": str(call["agent"]),
                "role": str(call["role"]),
                "reply": shorten(str(call["reply"])),
                "role_score": call.get("role_score"),
            }
            for call in episode["calls"]
        ],
    }
