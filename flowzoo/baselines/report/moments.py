"""One problem before and after a run broke, with the replies of every role."""

from __future__ import annotations

from typing import TypedDict

from flowzoo.agents.evaluation.summary import mean
from flowzoo.baselines.diagnostics.checkers import Episode
from flowzoo.baselines.diagnostics.roles import role_calls
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
    losses: list[tuple[float, float, Episode, Episode]] = []
    for later in last:
        earlier = earlier_rows.get(later["problem"])
        if earlier is not None:
            loss = _role_score(earlier, role) - _role_score(later, role)
            fell = (earlier["score"] or 0.0) - (later["score"] or 0.0)
            if max(fell, loss) > 0 and fell >= 0:
                losses.append((fell, loss, earlier, later))
    if not losses:
        return None
    *_, earlier, later = max(losses, key=lambda row: row[:2])
    return {
        "problem": shorten(str(later["problem"] if run.pays else later.get("text", ""))),
        "gold": shorten(str(later.get("gold", ""))),
        "before": _episode(earlier),
        "after": _episode(later),
        "steps": [steps[before], steps[after]],
    }


def _role_score(episode: Episode, role: str) -> float:
    scores = [call.get("role_score") for _, call in role_calls([episode], role)]
    values = [float(score) for score in scores if isinstance(score, (int, float))]
    return mean(values) if values else 0.0


def _episode(episode: Episode) -> MomentEpisode:
    answer = episode.get("answer")
    return {
        "score": episode.get("score"),
        "answer": None if answer is None else shorten(str(answer)),
        "calls": [
            {
                "agent": str(call["agent"]), "role": str(call["role"]),
                "reply": shorten(str(call["reply"])), "role_score": call.get("role_score"),
            }
            for call in episode["calls"]
        ],
    }  # fmt: skip
