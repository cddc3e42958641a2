"""Blame: the role whose decisions cost the team most, by replays with other decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flowzoo.baselines.diagnostics.counterfactual import (
    Choice,
    Chooser,
    Donors,
    Replacement,
    ReplayedEpisode,
    Saved,
    Situation,
    expert_reply,
    play,
    play_saved,
)
from flowzoo.baselines.diagnostics.verdicts import Verdicts
from flowzoo.baselines.stats import t_quantile
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.seeding import key_rng

GROUPS = 10
REPLAYS = 4  # replays of every episode, with other donors
STRANGE = 0.3
LEAST = 0.03
FAITHFUL = 0.9
FEWEST = 30  # problems below which groups say nothing


class Difference(NamedTuple):
    """A change of the team's score with its interval; fractions."""

    mean: float
    low: float
    high: float


class RoleBlame(NamedTuple):
    """Cost of the decisions of one role."""

    role: str
    cost: Difference  # score with its earlier decisions, less the real one
    room: Difference  # score with an oracle's decisions, less the real one
    strange: float
    """Share of the replaced replies, with its earlier decisions, without donor in a like situation.
    """


class Blame(NamedTuple):
    """The roles, the costliest first."""

    score: float
    problems: int
    fidelity: float
    roles: tuple[RoleBlame, ...]
    blamed: str  # a role, or empty
    programs: int  # programs that were run for the replay
    reused: int  # grades of programs that were taken from the saved episodes


def find_blame(
    workflow: Workflow,
    problems: Sequence[Problem],
    before: Sequence[Saved],
    now: Sequence[Saved],
) -> Blame | None:
    """The costs of every role at the evaluation `now`, against its decisions at `before`."""
    # A group of problems is answered by donors of that group alone, so that the groups are
    # independent; their spread gives the intervals by Student's t (Wolter, Introduction to Variance
    # Estimation, 2007, ch. 2), which hold together over roles (Bonferroni). A replay cannot know
    # what a role would do in a situation that the transcripts never show: such a role is not
    # blamed.
    if len(problems) < FEWEST:
        return None
    verdicts = Verdicts(workflow)
    workflow = verdicts.workflow
    try:
        earlier, real = (play_saved(verdicts, problems, rows) for rows in (before, now))
    except KeyError:
        return None
    if [episode.score for episode in real] != [float(row["score"]) for row in now]:
        return None
    group = _group_of(len(problems))
    pools = [[_pool(part, group, index) for index in range(GROUPS)] for part in (earlier, real)]
    roles = [
        role
        for role in workflow.role_counts()
        if any(
            decision.role == role and decision.role_score is not None
            for episode in real
            for decision in episode.decisions
        )
    ]
    level = 0.05 / max(1, len(roles))
    costs: list[RoleBlame] = []
    for role in roles:
        scores: list[list[ReplayedEpisode]] = []
        for oracle in (False, True):
            choose = [
                Replacement(
                    now=real[index].decisions,
                    now_donors=pools[1][group[index]],
                    role=role,
                    other=None if oracle else earlier[index].decisions,
                    other_donors=pools[0][group[index]],
                    key=f"{role} {oracle} {number}",
                )
                for number in range(REPLAYS)
                for index in range(len(problems))
            ]
            scores.append(play(workflow, list(problems) * REPLAYS, choose))
        cost, room = (_difference(real, played, group, level) for played in scores)
        replaced = sum(episode.replaced for episode in scores[0])
        strange = sum(episode.strange for episode in scores[0]) / max(1, replaced)
        costs.append(RoleBlame(role, cost, room, strange))
    costs.sort(key=lambda role_cost: -role_cost.cost.mean)
    fidelity = _fidelity(workflow, problems, real)
    tested = [cost for cost in costs if cost.strange <= STRANGE]
    certain = fidelity >= FAITHFUL and tested and tested[0].cost.mean >= LEAST
    blamed = tested[0].role if certain and tested[0].cost.low > 0 else ""
    score = float(np.mean([episode.score for episode in real]))
    return Blame(
        score, len(problems), fidelity, tuple(costs), blamed, verdicts.graded, verdicts.reused
    )


def _group_of(problems: int) -> list[int]:
    order = np.random.default_rng(0).permutation(problems)
    return [int(index) % GROUPS for index in order]


def _pool(episodes: Sequence[ReplayedEpisode], group: Sequence[int], which: int) -> Donors:
    donors = Donors()
    for episode, number in zip(episodes, group, strict=True):
        if number == which:
            donors.add(episode.decisions)
    return donors


def _difference(
    real: Sequence[ReplayedEpisode],
    other: Sequence[ReplayedEpisode],
    group: Sequence[int],
    level: float,
) -> Difference:
    replayed = (
        np.array([episode.score for episode in other]).reshape(REPLAYS, len(real)).mean(axis=0)
    )
    gaps = replayed - np.array([episode.score for episode in real])
    means = np.array([gaps[np.equal(group, which)].mean() for which in range(GROUPS)])
    mean, error = float(gaps.mean()), float(means.std(ddof=1)) / math.sqrt(GROUPS)
    half = t_quantile(GROUPS - 1, 1 - level / 2) * error
    return Difference(mean, mean - half, mean + half)


def _fidelity(
    workflow: Workflow, problems: Sequence[Problem], real: Sequence[ReplayedEpisode]
) -> float:
    # Where role scores do not decide a workflow's score this is low, and no role is blamed. Scores
    # may be shares of tests: a mistake of another program need not fail the same ones.
    again = play(workflow, problems, [_expert_for(before) for before in real])
    gaps = [abs(before.score - after.score) for before, after in zip(real, again, strict=True)]
    return 1 - float(np.mean(gaps))


def _expert_for(replayed: ReplayedEpisode) -> Chooser:
    decisions = {(decision.agent, decision.turn): decision for decision in replayed.decisions}

    def choose(episode: Episode, turn: Turn, _: Situation) -> Choice:
        decision = decisions.get((turn.agent, turn.turn))
        if decision is None:
            return Choice("")  # another path: the score differs, or the reply does not matter
        if decision.role_score is None or not decision.read:
            return Choice(decision.reply)
        rng = key_rng("fidelity", episode.problem.id, turn.agent, turn.turn)
        return Choice(expert_reply(episode, turn, decision.role_score, rng), replaced=True)

    return choose
