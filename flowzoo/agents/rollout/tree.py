"""Tree sampling as AT-GRPO does it: several candidates per decision, the best one is executed.

At every (episode, turn, agent) K candidates are sampled from the one frozen prompt. Each is valued
on a fork of the episode; then the best is executed and the episode goes on from its branch, so the
next prompt descends from the candidate that was taken: N * T * K generations, never K^T. In a
hidden phase each agent's candidates are valued against the mates' first candidates, then all
best ones are executed together.

What a candidate is worth (`TreeSettings.value`):

* `now`: alpha * team + local + format of what its branch knows at once, that is, when the effects
  that follow the reply are done. Local is the role score (`RoleScore`, `Grade(of=...)`) and form;
  the team's share is the score of a branch that has ended, else its `InterimScore`. Each counts
  only if all candidates of the decision know it. Known at once are the role scores of all roles of
  the shipped workflows, but of the orchestrator (its workers' answers), of workers on subtasks, of
  a tester without a reference (whose team's share is the coder's doing: take `rollout`) and of a
  search verifier and searcher without known gold passages.
* `rollout`: what the call is paid in the end under the workflow's credit rule, mean over
  `value_rollouts` plays of the branch to its end by the current policies. What that costs is
  counted in `RolloutBatch.value_calls` and `value_tokens`.

Differs from the paper (arXiv 2510.11062): team rewards come only from what the environment defines.
Differs from its released code: the next agent is prompted from the branch that was executed.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.branches import (
    Choice,
    Phase,
    answered,
    engine_values,
    fork_with_replies,
    resolve_effects,
    sample_phase,
)
from flowzoo.agents.rollout.candidates import call_fields, held_down, immediate_values
from flowzoo.agents.rollout.drivers import EpisodeDriver, OpenTurn, drive, engine_fields
from flowzoo.agents.rollout.engine import Play, PlayBatch, Response
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.envs import Call, Episode, EpisodeRecord, Workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.records import changed_call
from flowzoo.errors import UsageError, check_choice
from flowzoo.seeding import key_rng

Value = Literal["now", "rollout"]
Select = Literal["best", "sample", "first"]


@dataclass(frozen=True, slots=True)
class TreeSettings:
    """How candidates are sampled, valued and chosen.

    Raises:
        UsageError: a number below 1 or an unknown choice.
    """

    candidates: int = 4
    """Replies sampled at every decision: K."""
    value: Value = "now"
    """What a candidate is judged by; see the module docstring."""
    value_rollouts: int = 1
    """Plays to the end per candidate, for `value="rollout"`."""
    select: Select = "best"
    """Which candidate is executed: the `best` (ties: the lowest number), one drawn at random
    (`sample`), or the `first`, which leaves the episodes distributed as without a tree."""

    def __post_init__(self) -> None:
        for name in ("candidates", "value_rollouts"):
            if getattr(self, name) < 1:
                raise UsageError(f"`{name}` must be >= 1, got {getattr(self, name)}")
        check_choice("value", self.value, Value)
        check_choice("select", self.select, Select)


class Candidate(NamedTuple):
    """One reply of a decision, and what was found out about it."""

    answer: Response
    value: float
    fields: Mapping[str, Any]
    """The fields of its `Call` that differ from those of the executed candidate."""


class Decision(NamedTuple):
    """The candidates of one call, and which was executed."""

    node: str
    candidates: list[Candidate]
    taken: int


def single_deviation(slot: int, candidate: int, width: int) -> Choice:
    """The joint action in which one agent takes `candidate` and its mates their first ones."""
    return (*(0,) * slot, candidate, *(0,) * (width - slot - 1))


class TreeRollout(Sampler):
    """Plays every job once, choosing each reply among several candidates.

    Raises:
        UsageError: as `Sampler`; or the workflow has a credit rule of its own, which `now` cannot
            apply to half of the reward parts.
    """

    def __init__(
        self,
        workflow: Workflow,
        policy_map: PolicyMap,
        settings: TreeSettings | None = None,
        **rest: Any,
    ) -> None:
        """Make a sampler; `rest` is what `Sampler` takes."""
        super().__init__(workflow, policy_map, **rest)
        self.settings = settings or TreeSettings()
        if self.settings.value == "now" and callable(workflow.credit):
            raise UsageError(
                'value="now" is alpha * team + local; a credit rule of your own is applied to '
                'finished episodes only: take TreeSettings(value="rollout")'
            )

    def play(self, workflow: Workflow, job: EpisodeJob) -> Play:
        """The play of one job; returns its `RolloutBatch`."""
        return TreePlay(self, workflow, job).grow()


class TreePlay:
    """One job under way: the decisions taken so far, and what their values cost."""

    def __init__(self, sampler: TreeRollout, workflow: Workflow, job: EpisodeJob) -> None:
        self.workflow, self.job = workflow, job
        self.policy_map, self.settings = sampler.policy_map, sampler.settings
        self.key = (sampler.seed, job.problem.id, job.sample)
        self.decisions: dict[int, Decision] = {}
        """By call number."""
        self.value_calls = self.value_tokens = 0

    def grow(self) -> Play:
        """From the start of the episode to its end; returns `RolloutBatch`."""
        episode = Episode(self.workflow, self.job.problem, self.job.key)
        yield from resolve_effects([episode])
        while not episode.done:
            episode = yield from self.decide(episode)
        return self.sampled(episode)

    def decide(self, episode: Episode) -> Generator[Any, Any, Episode]:
        """Sample, value and execute one phase; returns the branch that was taken."""
        count = self.settings.candidates
        phase = yield from sample_phase(self.policy_map, episode, self.key, count)
        width = len(phase.turns)
        # The mates' first candidates are shared: 1 + width * (count - 1) branches.
        rows = [
            [single_deviation(slot, number, width) for number in range(count)]
            for slot in range(width)
        ]
        *others, last = sorted({choice for row in rows for choice in row})
        branches = {choice: fork_with_replies(episode, phase, choice) for choice in others}
        # A lone agent's branches are all there will be, so the last needs no fork.
        branches[last] = (answered if width == 1 else fork_with_replies)(episode, phase, last)
        yield from resolve_effects(list(branches.values()))
        values = yield from self.values(phase, rows, branches)
        taken = tuple(map(self.pick, phase.turns, values))
        if taken not in branches:
            branches[taken] = fork_with_replies(episode, phase, taken)
            yield from resolve_effects([branches[taken]])
        for slot, turn in enumerate(phase.turns):
            candidates: list[Candidate] = []
            found = zip(phase.answers[slot], values[slot], rows[slot], strict=True)
            for answer, value, choice in found:
                fields = call_fields(self.workflow, branches[choice], turn.call, value)
                candidates.append(Candidate(answer, value, fields))
            node = f"{self.job.key}/{phase.number}.{slot}"
            self.decisions[turn.call] = Decision(node, candidates, taken[slot])
        return branches[taken]

    def values(
        self, phase: Phase, rows: Sequence[Sequence[Choice]], branches: Mapping[Choice, Episode]
    ) -> Generator[Any, Any, list[list[float]]]:
        """Per turn of the phase, what the candidates that `rows` names are worth."""
        if self.settings.value == "now":
            return [
                immediate_values(self.workflow, turn, [branches[choice] for choice in row])
                for turn, row in zip(phase.turns, rows, strict=True)
            ]
        ends = yield from self.play_out(phase, branches)
        found: list[list[float]] = []
        for turn, row in zip(phase.turns, rows, strict=True):
            calls = [[end.calls[turn.call] for end in ends[choice]] for choice in row]
            values = [sum(call.reward for call in own) / len(own) for own in calls]
            shares = [sum(call.team_share for call in own) / len(own) for own in calls]
            found.append(held_down(values, shares, [own[0].abstained for own in calls]))
        return found

    def play_out(
        self, phase: Phase, branches: Mapping[Choice, Episode]
    ) -> Generator[Any, Any, dict[Choice, list[EpisodeRecord]]]:
        """Every branch's ends; one that has ended already has just its own."""
        ends = {choice: [record(b)] for choice, b in branches.items() if b.done}
        open_ones = [choice for choice in branches if choice not in ends]
        rollouts = range(self.settings.value_rollouts)
        plays = [
            self.value_play(branches[choice], ("value", phase.number, *choice, rollout))
            for choice in open_ones
            for rollout in rollouts
        ]
        found = iter((yield PlayBatch(plays)))
        for choice in open_ones:
            ends[choice] = [next(found) for _ in rollouts]
            for end in ends[choice]:
                # Only calls of this rollout have an engine's fields.
                self.value_calls += len(end.calls) - sum(
                    turn.reply is not None for turn in branches[choice].turns
                )
                self.value_tokens += sum(len(call.output_ids) for call in end.calls)
        return ends

    def value_play(self, branch: Episode, suffix: tuple[str | int, ...]) -> Play:
        """A plain play of a fork of `branch` to its end."""

        def start() -> EpisodeDriver:
            return EpisodeDriver(branch.fork())

        seed, _, sample = self.key
        return drive(start, self.policy_map, seed, sample, suffix)

    def pick(self, turn: OpenTurn, values: Sequence[float]) -> int:
        """Which candidate is executed."""
        if self.settings.select == "best":
            return values.index(max(values))
        if self.settings.select == "first":
            return 0
        return key_rng("select", *self.key, turn.agent, turn.turn).randrange(len(values))

    def sampled(self, episode: Episode) -> RolloutBatch:
        """The episode, and a row for every candidate, in call order."""
        decisions = self.decisions
        answers = {
            number: decision.candidates[decision.taken].answer
            for number, decision in decisions.items()
        }
        done = record(episode, engine_fields(answers))
        rows: list[Call] = []
        executed: list[Call] = []
        for number, call in enumerate(done.calls):
            node, candidates, taken = decisions[number]
            for place, candidate in enumerate(candidates):
                own = {"node": node, "candidate": place, "value": candidate.value}
                if place != taken:
                    own |= candidate.fields
                    own |= engine_values(candidate.answer)
                    own["executed"] = False
                row = changed_call(call, own)
                rows.append(row)
                if place == taken:
                    executed.append(row)
        finished = replace(done, calls=tuple(executed))
        return RolloutBatch([finished], rows, self.value_calls, self.value_tokens)
