"""Which role's decisions cost the team most? By replacing them and playing the transcripts again.

For every role whose decisions have a role score, two questions about the last evaluation:

* What would the team's score be with the decisions that the role took *before*, at an earlier
  evaluation? Less the real score this is what its change has cost: `cost`. The role that is blamed
  has the largest cost, of `LEAST` or more, with an interval that excludes 0.
* What would it be with those of an *oracle*, who does the role's job rightly? Less the real score:
  `room`. Roles that write the answer have most of it by nature, so nobody is blamed for that.

The episodes are played again as `counterfactual` says. A group of problems is answered by donors of
that group alone, so that the `GROUPS` groups are independent, replaced and real replies alike;
their spread gives the intervals, by Student's t (the random groups of Wolter, Introduction to
Variance Estimation, 2007, ch. 2). They hold together over roles (Bonferroni).

A replay cannot know what a role would do in a situation that the transcripts never show. Where more
than `STRANGE` of the replaced replies have no donor in a like situation, the cost says little, and
the role is not blamed.

`fidelity` is the share of episodes whose score comes out again when *every* reply is replaced by
the expert's of the same role score: where role scores do not decide a workflow's score it is low,
and below `FAITHFUL` nobody is blamed.

How often the blame is right: `studies/truth_tables.py`, part `blame`.
"""

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
    from_transcript,
    play,
)
from flowzoo.baselines.stats import t_quantile
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.seeding import key_rng

GROUPS = 10
REPLAYS = 4
"""Times that every episode is played again, with other donors."""
STRANGE = 0.3
LEAST = 0.03
FAITHFUL = 0.9
FEWEST = 30
"""Problems below which groups say nothing."""


class Difference(NamedTuple):
    """A change of the team's score with its interval; fractions."""

    mean: float
    low: float
    high: float


class RoleBlame(NamedTuple):
    """What the decisions of one role cost."""

    role: str
    cost: Difference
    """Score with its earlier decisions, less the real one."""
    room: Difference
    """Score with an oracle's decisions, less the real one."""
    strange: float
    """Share of the replaced replies, with its earlier decisions, without donor in a like situation.
    """


class Blame(NamedTuple):
    """The roles, the costliest first."""

    score: float
    problems: int
    fidelity: float
    roles: tuple[RoleBlame, ...]
    blamed: str
    """A role, or nothing."""


def find_blame(
    workflow: Workflow,
    problems: Sequence[Problem],
    before: Sequence[Saved],
    now: Sequence[Saved],
) -> Blame | None:
    """The costs of every role at the evaluation `now`, against its decisions at `before`.

    `before` and `now` have one saved episode of every problem, in the order of `problems`. None for
    fewer than `FEWEST` problems, or where the transcripts are not what this version of the workflow
    would ask (an episode took another path).
    """
    if len(problems) < FEWEST:
        return None
    try:
        earlier = play(workflow, problems, [from_transcript(one) for one in before])
        real = play(workflow, problems, [from_transcript(one) for one in now])
    except KeyError:
        return None
    if [one.score for one in real] != [float(one["score"]) for one in now]:
        return None
    group = group_of(len(problems))
    pools = [[_pool(one, group, place) for place in range(GROUPS)] for one in (earlier, real)]
    roles = [
        role for role in workflow.role_counts()
        if any(d.role == role and d.role_score is not None for one in real for d in one.decisions)
    ]  # fmt: skip
    level = 0.05 / max(1, len(roles))
    found: list[RoleBlame] = []
    for role in roles:
        scores: list[list[ReplayedEpisode]] = []
        for oracle in (False, True):
            choose = [
                Replacement(
                    now=real[place].decisions,
                    now_donors=pools[1][group[place]],
                    role=role,
                    other=None if oracle else earlier[place].decisions,
                    other_donors=pools[0][group[place]],
                    key=f"{role} {oracle} {number}",
                )
                for number in range(REPLAYS)
                for place in range(len(problems))
            ]
            scores.append(play(workflow, list(problems) * REPLAYS, choose))
        cost, room = (_difference(real, one, group, level) for one in scores)
        replaced = sum(one.replaced for one in scores[0])
        strange = sum(one.strange for one in scores[0]) / max(1, replaced)
        found.append(RoleBlame(role, cost, room, strange))
    found.sort(key=lambda one: -one.cost.mean)
    fidelity = _fidelity(workflow, problems, real)
    told = [one for one in found if one.strange <= STRANGE]
    certain = fidelity >= FAITHFUL and told and told[0].cost.mean >= LEAST
    blamed = told[0].role if certain and told[0].cost.low > 0 else ""
    score = float(np.mean([one.score for one in real]))
    return Blame(score, len(problems), fidelity, tuple(found), blamed)


def group_of(problems: int) -> list[int]:
    """A group for every problem, at random and of equal sizes."""
    order = np.random.default_rng(0).permutation(problems)
    return [int(place) % GROUPS for place in order]


def _pool(episodes: Sequence[ReplayedEpisode], group: Sequence[int], which: int) -> Donors:
    donors = Donors()
    for episode, mine in zip(episodes, group, strict=True):
        if mine == which:
            donors.add(episode.decisions)
    return donors


def _difference(
    real: Sequence[ReplayedEpisode],
    other: Sequence[ReplayedEpisode],
    group: Sequence[int],
    level: float,
) -> Difference:
    replayed = np.array([one.score for one in other]).reshape(REPLAYS, len(real)).mean(axis=0)
    gaps = replayed - np.array([one.score for one in real])
    means = np.array([gaps[np.equal(group, which)].mean() for which in range(GROUPS)])
    mean, error = float(gaps.mean()), float(means.std(ddof=1)) / math.sqrt(GROUPS)
    half = t_quantile(GROUPS - 1, 1 - level / 2) * error
    return Difference(mean, mean - half, mean + half)


def _fidelity(
    workflow: Workflow, problems: Sequence[Problem], real: Sequence[ReplayedEpisode]
) -> float:
    """Share of the episodes that come to the same when experts say everything."""
    again = play(workflow, problems, [_expert_for(one) for one in real])
    return float(np.mean([one.score == two.score for one, two in zip(real, again, strict=True)]))


def _expert_for(one: ReplayedEpisode) -> Chooser:
    """Has the expert say everything, as right as it was."""
    known = {(decision.agent, decision.turn): decision for decision in one.decisions}

    def choose(episode: Episode, turn: Turn, _: Situation) -> Choice:
        decision = known.get((turn.agent, turn.turn))
        if decision is None:
            return Choice("")  # another path: it comes to another score, or does not matter
        if decision.role_score is None or not decision.read:
            return Choice(decision.reply)
        rng = key_rng("fidelity", episode.problem.id, turn.agent, turn.turn)
        return Choice(expert_reply(episode, turn, decision.role_score, rng), replaced=True)

    return choose
