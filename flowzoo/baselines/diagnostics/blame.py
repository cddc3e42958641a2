"""Blame: the role whose decisions cost the team most, by replays with other decisions.

Episodes are played again from their transcripts, with the decisions of a role replaced.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.diagnostics.verdicts import Verdicts
from flowzoo.baselines.stats import mean_and_error, t_quantile
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn, prompt_digest
from flowzoo.envs.script import Grade
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.seeding import key_rng

Saved = Mapping[str, Any]  # an episode of a transcript file
Situation = tuple[tuple[Any, ...], ...]
"""Keys from fine to coarse; the first that a donor has is taken."""
FINE = 2  # keys that make situations alike; coarser ones say that none was found
FEWEST_DONORS = 3  # decisions of a situation below which a coarser one is taken


class ReplayedReply(NamedTuple):
    """One reply, by its situation and how well it did its role's job."""

    agent: str
    turn: int
    role: str
    situation: Situation
    prompt: bytes
    reply: str
    role_score: float | None
    read: bool  # the parser that rules the workflow could read it


class ReplayedEpisode(NamedTuple):
    """Result of a replay."""

    score: float
    decisions: tuple[ReplayedReply, ...]
    replaced: int  # replies that are not the transcript's
    strange: int  # replaced replies without a donor in a like situation


class Choice(NamedTuple):
    """A reply for an open turn."""

    reply: str
    replaced: bool = False
    strange: bool = False


Chooser = Callable[[Episode, Turn, Situation], Choice]  # answers for an open turn


def play(
    workflow: Workflow,
    problems: Sequence[Problem],
    choose: Sequence[Chooser],
    on_grade: Callable[[int, Episode, Grade], None] = lambda index, episode, grade: None,
) -> list[ReplayedEpisode]:
    """Play one episode of every problem; `choose` answers for all roles of each.

    `on_grade` is called before an episode's answer is graded, with its index.
    """
    # Side by side, so that the task's grader sees them in batches.
    episodes = [Episode(workflow, problem) for problem in problems]
    answers: list[dict[int, tuple[Situation, Choice]]] = [{} for _ in episodes]
    while not all(episode.done for episode in episodes):
        for index, episode in enumerate(episodes):
            for effect in episode.effects:
                if isinstance(effect, Grade):
                    on_grade(index, episode, effect)
        jobs = [job for episode in episodes for job in episode.pending_effects]
        results = iter(resolve(workflow.task, jobs, workflow.judge)) if jobs else iter(())
        for episode, given, chooser in zip(episodes, answers, choose, strict=True):
            if episode.effects:
                episode.resolve([next(results) for _ in episode.effects])
                continue
            for turn in episode.waiting:
                where = situation(episode, turn)
                choice = chooser(episode, turn, where)
                given[turn.call] = where, choice
                episode.reply(turn.agent, choice.reply)
    return [_replay_result(*pair) for pair in zip(episodes, answers, strict=True)]


def _replay_result(
    episode: Episode, answers: Mapping[int, tuple[Situation, Choice]]
) -> ReplayedEpisode:
    workflow, choices = episode.workflow, [choice for _, choice in answers.values()]
    decisions = tuple(
        ReplayedReply(
            turn.agent, turn.turn, workflow.agents[turn.agent][0], answers[turn.call][0],
            _prompt_key(turn), turn.said, episode.role_scores.get(turn.call),
            turn.reply is not None and workflow.read(turn.reply) is not None,
        )
        for turn in episode.turns
    )  # fmt: skip
    return ReplayedEpisode(
        float(episode.finished().score or 0.0),
        decisions,
        replaced=sum(choice.replaced for choice in choices),
        strange=sum(choice.strange for choice in choices),
    )


def situation(episode: Episode, turn: Turn) -> Situation:
    """Situation of an agent when it is asked, from earlier events alone."""
    agents, scores = episode.workflow.agents, episode.role_scores
    latest: dict[str, float] = {}
    total: dict[str, float] = {}
    phases: dict[str, int] = {}
    for earlier in episode.turns:
        role, score = agents[earlier.agent][0], scores.get(earlier.call)
        if score is None or earlier.call >= turn.call or earlier.phase >= turn.phase:
            continue
        if phases.get(role) != earlier.phase:
            phases[role], latest[role] = earlier.phase, 0.0
        latest[role] += round(score, 3)
        total[role] = round(total.get(role, 0.0) + score, 3)
    last, whole = tuple(sorted(latest.items())), tuple(sorted(total.items()))
    role = agents[turn.agent][0]
    return (role, turn.turn, last, whole), (role, last, whole), (role, last), (role,)


def _prompt_key(turn: Turn) -> bytes:
    return prompt_digest(turn.observe())  # calls of tools included


def play_saved(
    verdicts: Verdicts, problems: Sequence[Problem], saved: Sequence[Saved]
) -> list[ReplayedEpisode]:
    """Play saved episodes again; the grade of a reply is the role score it was saved with."""
    scores = [
        {(call["agent"], call["turn"]): call.get("role_score") for call in row["calls"]}
        for row in saved
    ]

    def take(index: int, episode: Episode, grade: Grade) -> None:
        if grade.of is not None:
            turn = episode.turns[grade.of.call]
            score = scores[index].get((turn.agent, turn.turn))
            verdicts.take(episode.problem, grade.answer, score)

    return play(verdicts.workflow, problems, list(map(from_transcript, saved)), take)


def from_transcript(saved: Saved) -> Chooser:
    """Chooser that takes every reply from the transcript; KeyError on another path."""
    replies = {(call["agent"], call["turn"]): call["reply"] for call in saved["calls"]}
    return lambda episode, turn, where: Choice(replies[turn.agent, turn.turn])


class Donors:
    """Decisions to draw from, by situation."""

    def __init__(self, episodes: Iterable[ReplayedEpisode] = ()) -> None:
        """Take in the decisions that have a role score."""
        self._pools: dict[tuple[Any, ...], list[ReplayedReply]] = {}
        for decision in (reply for episode in episodes for reply in episode.decisions):
            if decision.role_score is not None:
                for key in decision.situation:
                    self._pools.setdefault(key, []).append(decision)

    def draw(self, where: Situation, rng: Random) -> ReplayedReply | None:
        """A random decision in the finest situation that has enough; None: none has."""
        pools = (self._pools.get(key, []) for key in where)
        pool = next((pool for pool in pools if len(pool) >= FEWEST_DONORS), None)
        return None if pool is None else rng.choice(pool)


def expert_reply(episode: Episode, turn: Turn, role_score: float, rng: Random) -> str:
    """Reply of the scripted expert who does this job right with chance `role_score`."""
    role = episode.workflow.agents[turn.agent][0]
    right = role_score >= 1 or (role_score > 0 and rng.random() < role_score)
    return episode.workflow.expert(role, turn.observe(), episode.problem, rng, right)


@dataclass(frozen=True)
class Replacement:
    """Answers for all roles: one role by `other`'s decisions, the rest as in the transcript."""

    # A reply serves where its prompt is the same; after a replaced reply prompts may follow that
    # have none. Whether such a reply is right comes from a donor, a decision of the role in the
    # same situation of another episode; its text comes from the workflow's scripted expert, or from
    # the donor if the donor's reply was unreadable.

    now: Sequence[ReplayedReply]  # decisions of the episode itself
    now_donors: Donors
    role: str
    other: Sequence[ReplayedReply] | None
    """Decisions of the role on the same problem; None: the oracle, who does everything rightly."""
    other_donors: Donors
    key: str

    def __call__(self, episode: Episode, turn: Turn, where: Situation) -> Choice:
        """The reply to an open turn."""
        rng = key_rng("counterfactual", self.key, episode.problem.id, turn.agent, turn.turn)
        replaced_role = episode.workflow.agents[turn.agent][0] == self.role
        if replaced_role and self.other is None:
            return Choice(expert_reply(episode, turn, 1.0, rng), replaced=True)
        decisions = self.other if replaced_role and self.other is not None else self.now
        key = turn.agent, turn.turn, _prompt_key(turn)
        for decision in decisions:
            if (decision.agent, decision.turn, decision.prompt) == key:
                return Choice(decision.reply, replaced=replaced_role)
        donors, others = self.now_donors, self.other_donors
        if replaced_role:
            donors, others = others, donors
        fine = where[:FINE]
        like = donors.draw(fine, rng) or others.draw(fine, rng)
        drawn = like or donors.draw(where, rng)
        if drawn is None:  # no decision of this role has a role score: say what was said last
            texts = [decision.reply for decision in decisions if decision.agent == turn.agent]
            return Choice((texts or [""])[-1], replaced=True, strange=True)
        text = drawn.reply
        if drawn.read:
            text = expert_reply(episode, turn, drawn.role_score or 0.0, rng)
        return Choice(text, replaced=True, strange=like is None)


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
    workflow: Workflow, problems: Sequence[Problem], before: Sequence[Saved], now: Sequence[Saved]
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
    order = np.random.default_rng(0).permutation(len(problems))
    group = [int(index) % GROUPS for index in order]
    pools = [
        [Donors(part[row] for row in np.flatnonzero(np.equal(group, which)))
         for which in range(GROUPS)]
        for part in (earlier, real)
    ]  # fmt: skip
    scored = {
        decision.role
        for episode in real
        for decision in episode.decisions
        if decision.role_score is not None
    }
    roles = [role for role in workflow.role_counts() if role in scored]
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
    worst = next((cost for cost in costs if cost.strange <= STRANGE), None)
    certain = fidelity >= FAITHFUL and worst and worst.cost.mean >= LEAST and worst.cost.low > 0
    score = float(np.mean([episode.score for episode in real]))
    return Blame(
        score, len(problems), fidelity, tuple(costs), worst.role if worst and certain else "",
        verdicts.graded, verdicts.reused,
    )  # fmt: skip


def _difference(
    real: Sequence[ReplayedEpisode],
    other: Sequence[ReplayedEpisode],
    group: Sequence[int],
    level: float,
) -> Difference:
    scores = np.array([episode.score for episode in real])
    replayed = np.array([episode.score for episode in other]).reshape(REPLAYS, len(real))
    gaps = replayed.mean(axis=0) - scores
    means = np.array([gaps[np.equal(group, which)].mean() for which in range(GROUPS)])
    half = t_quantile(GROUPS - 1, 1 - level / 2) * mean_and_error(means)[1]
    mean = float(gaps.mean())
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
