"""Episodes played again from their transcripts, with the decisions of some role replaced.

The script of a workflow does no I/O, so a saved episode can be played again without any model: its
replies are given from the transcript, and only what the task computes is computed anew. As soon as
a reply is replaced, others may be asked something that the transcript has no reply to. Such a reply
is made in two steps: whether it was right is taken from a *donor*, a decision of the same role in
the same situation of another episode; its text is what the workflow's scripted expert says who does
that job rightly or wrongly (`Workflow.expert`), or the donor's own where nobody could read it. A
situation is how often the agent was asked before and, for every role, the role scores of its
replies so far: what a checker was shown, what was found.
Where no episode has a situation, coarser ones are taken (`Situation`).

All episodes are played side by side, so that the task's grader sees them in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import Workflow
from flowzoo.seeding import key_rng

Saved = Mapping[str, Any]
"""An episode of a transcript file."""
Situation = tuple[tuple[Any, ...], ...]
"""Keys from fine to coarse; the first that a donor has is taken."""
FINE = 2
"""Keys that make situations alike; coarser ones say that none was found."""
FEWEST_DONORS = 3
"""Decisions of a situation below which a coarser one is taken."""


class ReplayedReply(NamedTuple):
    """One reply, by its situation and how well it did its role's job."""

    agent: str
    turn: int
    role: str
    situation: Situation
    prompt: tuple[tuple[str, str], ...]
    reply: str
    role_score: float | None
    read: bool
    """The parser that rules the workflow could read it."""


class ReplayedEpisode(NamedTuple):
    """What a replay came to."""

    score: float
    decisions: tuple[ReplayedReply, ...]
    replaced: int
    """Replies that are not the transcript's."""
    strange: int
    """Those of them that no donor in a like situation was found for."""


class Choice(NamedTuple):
    """A reply for an open turn."""

    reply: str
    replaced: bool = False
    strange: bool = False


Chooser = Callable[[Episode, Turn, Situation], Choice]
"""Answers for an open turn."""


def play(
    workflow: Workflow, problems: Sequence[Problem], choose: Sequence[Chooser]
) -> list[ReplayedEpisode]:
    """Play one episode of every problem; `choose` answers for all roles of each.

    Raises:
        FlowzooError: what the task raises; a workflow whose script fails.
    """
    episodes = [Episode(workflow, problem) for problem in problems]
    said: list[dict[int, Situation]] = [{} for _ in episodes]
    choices: list[list[Choice]] = [[] for _ in episodes]
    while not all(episode.done for episode in episodes):
        jobs = [job for episode in episodes for job in episode.pending_effects]
        results = iter(resolve(workflow.task, jobs)) if jobs else iter(())
        for place, episode in enumerate(episodes):
            if episode.effects:
                episode.resolve([next(results) for _ in episode.effects])
                continue
            for turn in episode.waiting:
                where = situation(episode, turn)
                said[place][turn.call] = where
                choices[place].append(choose[place](episode, turn, where))
                episode.reply(turn.agent, choices[place][-1].reply)
    return [
        ReplayedEpisode(
            score=float(episode.finished().score or 0.0),
            decisions=_decisions(episode, places),
            replaced=sum(choice.replaced for choice in chosen),
            strange=sum(choice.strange for choice in chosen),
        )
        for episode, places, chosen in zip(episodes, said, choices, strict=True)
    ]


def situation(episode: Episode, turn: Turn) -> Situation:
    """Where an agent stands when it is asked; from what is known by then alone."""
    agents, scores = episode.workflow.agents, episode.role_scores
    before = [one for one in episode.turns if one.call < turn.call and one.phase < turn.phase]
    latest: dict[str, float] = {}
    total: dict[str, float] = {}
    phases: dict[str, int] = {}
    for one in before:
        role, score = agents[one.agent][0], scores.get(one.call)
        if score is None:
            continue
        if phases.get(role) != one.phase:
            phases[role], latest[role] = one.phase, 0.0
        latest[role] += round(score, 3)
        total[role] = round(total.get(role, 0.0) + score, 3)
    last, whole = tuple(sorted(latest.items())), tuple(sorted(total.items()))
    role = agents[turn.agent][0]
    return (role, turn.turn, last, whole), (role, last, whole), (role, last), (role,)


def _decisions(episode: Episode, said: Mapping[int, Situation]) -> tuple[ReplayedReply, ...]:
    return tuple(
        ReplayedReply(
            turn.agent, turn.turn, episode.workflow.agents[turn.agent][0], said[turn.call],
            prompt_key(turn), turn.said, episode.role_scores.get(turn.call),
            turn.reply is not None and episode.workflow.read(turn.reply) is not None,
        )
        for turn in episode.turns
    )  # fmt: skip


def prompt_key(turn: Turn) -> tuple[tuple[str, str], ...]:
    """The prompt of a turn, to be compared."""
    return tuple((message["role"], message["content"]) for message in turn.observe())


def from_transcript(saved: Saved) -> Chooser:
    """Says what the transcript says.

    Its KeyError tells that the episode took another path than the transcript.
    """
    replies = {(call["agent"], call["turn"]): call["reply"] for call in saved["calls"]}
    return lambda episode, turn, where: Choice(replies[turn.agent, turn.turn])


class Draw(NamedTuple):
    """A decision of a donor."""

    role_score: float
    text: str | None
    """What it said, where nobody could read that."""
    like: bool
    """The donor's situation was one of the `FINE` finest."""


@dataclass
class Donors:
    """Decisions to draw from, by situation."""

    _pools: dict[tuple[Any, ...], list[ReplayedReply]] = field(default_factory=dict)

    def add(self, decisions: Sequence[ReplayedReply]) -> None:
        """Take in decisions with a role score."""
        for one in decisions:
            if one.role_score is not None:
                for key in one.situation:
                    self._pools.setdefault(key, []).append(one)

    def draw(self, where: Situation, rng: Random, *, like: bool = False) -> Draw | None:
        """A random decision in the finest situation that has enough; None: none has.

        `like`: only from situations that are fine enough to be called alike.
        """
        for fineness, key in enumerate(where[:FINE] if like else where):
            pool = self._pools.get(key, [])
            if len(pool) >= FEWEST_DONORS:
                one = rng.choice(pool)
                return Draw(one.role_score or 0.0, None if one.read else one.reply, fineness < FINE)
        return None


def expert_reply(episode: Episode, turn: Turn, role_score: float, rng: Random) -> str:
    """What the scripted expert says who does this job rightly with chance `role_score`."""
    role = episode.workflow.agents[turn.agent][0]
    right = role_score >= 1 or (role_score > 0 and rng.random() < role_score)
    return episode.workflow.expert(role, turn.observe(), episode.problem, rng, right)


@dataclass(frozen=True)
class Replacement:
    """Answers for all roles: one role by `other`'s decisions, the rest as in the transcript.

    A reply of the transcript serves where the prompt is the transcript's, and so does one of
    `other`'s replies to the same prompt; everything else is drawn from donors. In a situation that
    one of the two evaluations does not show, a role does what it did in the other one, as if it had
    not changed.
    """

    now: Sequence[ReplayedReply]
    """Of the episode itself."""
    now_donors: Donors
    role: str
    other: Sequence[ReplayedReply] | None
    """Decisions of the role on the same problem; None: the oracle, who does everything rightly."""
    other_donors: Donors
    key: str

    def __call__(self, episode: Episode, turn: Turn, where: Situation) -> Choice:
        """The reply to an open turn."""
        rng = key_rng("counterfactual", self.key, episode.problem.id, turn.agent, turn.turn)
        mine = episode.workflow.agents[turn.agent][0] == self.role
        if mine and self.other is None:
            return Choice(expert_reply(episode, turn, 1.0, rng), replaced=True)
        known = self.other if mine and self.other is not None else self.now
        prompt = prompt_key(turn)
        for one in known:
            if (one.agent, one.turn) == (turn.agent, turn.turn) and one.prompt == prompt:
                return Choice(one.reply, replaced=mine)
        own, rest = self.now_donors, self.other_donors
        if mine:
            own, rest = rest, own
        drawn = own.draw(where, rng, like=True) or rest.draw(where, rng, like=True)
        drawn = drawn or own.draw(where, rng)
        if drawn is None:  # no decision of this role has a role score: say what was said last
            texts = [one.reply for one in known if one.agent == turn.agent] or [""]
            return Choice(texts[-1], replaced=True, strange=True)
        text = drawn.text
        if text is None:
            text = expert_reply(episode, turn, drawn.role_score, rng)
        return Choice(text, replaced=True, strange=not drawn.like)
