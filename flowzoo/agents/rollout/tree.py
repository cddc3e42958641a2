"""Tree sampling as AT-GRPO does it: several candidates per decision, the best one is executed.

At every (episode, turn, agent) K candidates are sampled from the one frozen prompt and valued on
forks of the episode; the episode goes on from the branch of the best: N * T * K generations, never
K^T. Differs from the paper (arXiv:2510.11062): team rewards come only from what the environment
defines. Differs from its released code: the next agent is prompted from the branch that was
executed.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.branches import (
    Choice,
    Phase,
    answer_turns,
    call_fields,
    check_replayable,
    fork_with_replies,
    held_down,
    immediate_values,
    resolve_effects,
    sample_phase,
)
from flowzoo.agents.rollout.drivers import drive, engine_fields, finished_record
from flowzoo.agents.rollout.engine import Play, PlayBatch, Response, Step
from flowzoo.agents.rollout.episodes import EpisodeJob, RolloutBatch, Sampler
from flowzoo.agents.rollout.settings import TreeSettings
from flowzoo.envs import Call, Episode, EpisodeRecord, Workflow
from flowzoo.envs.episode.recording import record
from flowzoo.envs.episode.turn import Turn
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng


class Candidate(NamedTuple):
    """One reply of a decision, with its value."""

    answer: Response
    value: float
    fields: Mapping[str, Any]
    """Fields of its `Call` that differ from the executed candidate's."""


class Decision(NamedTuple):
    """Candidates of one call, and the index of the executed one."""

    node: str
    candidates: list[Candidate]
    executed: int


class TreeRollout(Sampler):
    """Plays every job once, choosing each reply among several candidates.

    Raises:
        UsageError: as `Sampler`; or the workflow has a rubric or a custom credit rule, which `now`
            cannot apply to half of the reward parts.
    """

    def __init__(
        self,
        workflow: Workflow,
        policy_map: PolicyMap,
        settings: TreeSettings | None = None,
        **rest: Any,
    ) -> None:
        super().__init__(workflow, policy_map, **rest)
        check_replayable(workflow)
        self.settings = settings or TreeSettings()
        by_rule = callable(workflow.credit) or workflow.credit == "rubric"
        if self.settings.value == "now" and by_rule:
            raise UsageError(
                'value="now" is alpha * team + local; a rubric or a credit rule of your own is '
                'applied to finished episodes only: take TreeSettings(value="rollout")'
            )

    def play(self, workflow: Workflow, job: EpisodeJob) -> Play:
        """The play of one job; returns its `RolloutBatch`."""
        return TreePlay(self, workflow, job).grow()


class TreePlay:
    """One job under way: the decisions so far, and the cost of their values."""

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
        yield from resolve_effects(self.policy_map, [episode])
        while not episode.done:
            episode = yield from self.decide(episode)
        return self.sampled(episode)

    def decide(self, episode: Episode) -> Generator[Step, list[Any], Episode]:
        """Sample, value and execute one phase; returns the branch that was taken."""
        count = self.settings.candidates
        phase = yield from sample_phase(self.policy_map, episode, self.key, count)
        width = len(phase.turns)
        # One agent takes a candidate, its mates their first ones, which all agents share:
        # 1 + width * (count - 1) branches.
        rows = [
            [(*(0,) * slot, number, *(0,) * (width - slot - 1)) for number in range(count)]
            for slot in range(width)
        ]
        *others, last = sorted({choice for row in rows for choice in row})
        branches = {choice: fork_with_replies(episode, phase, choice) for choice in others}
        # A lone agent's branches are all there will be, so the last needs no fork.
        branches[last] = (answer_turns if width == 1 else fork_with_replies)(episode, phase, last)
        yield from resolve_effects(self.policy_map, list(branches.values()))
        values = yield from self.values(phase, rows, branches)
        executed = tuple(map(self.pick, phase.turns, values))
        if executed not in branches:
            branches[executed] = fork_with_replies(episode, phase, executed)
            yield from resolve_effects(self.policy_map, [branches[executed]])
        for slot, turn in enumerate(phase.turns):
            candidates: list[Candidate] = []
            rows_of_turn = zip(phase.answers[slot], values[slot], rows[slot], strict=True)
            for answer, value, choice in rows_of_turn:
                fields = call_fields(self.workflow, branches[choice], turn.call, value)
                candidates.append(Candidate(answer, value, fields))
            node = f"{self.job.key}/{turn.phase}.{slot}"
            self.decisions[turn.call] = Decision(node, candidates, executed[slot])
        return branches[executed]

    def values(
        self, phase: Phase, rows: Sequence[Sequence[Choice]], branches: Mapping[Choice, Episode]
    ) -> Generator[Step, list[Any], list[list[float]]]:
        """Values of the candidates in `rows`, per turn of the phase."""
        if self.settings.value == "now":
            return [
                immediate_values(self.workflow, turn, [branches[choice] for choice in row])
                for turn, row in zip(phase.turns, rows, strict=True)
            ]
        ends = yield from self.play_out(phase, branches)
        value_rows: list[list[float]] = []
        for turn, row in zip(phase.turns, rows, strict=True):
            calls = [[end.calls[turn.call] for end in ends[choice]] for choice in row]
            values = [sum(call.reward for call in records) / len(records) for records in calls]
            shares = [sum(call.team_share for call in records) / len(records) for records in calls]
            value_rows.append(
                held_down(values, shares, [records[0].abstained for records in calls])
            )
        return value_rows

    def play_out(
        self, phase: Phase, branches: Mapping[Choice, Episode]
    ) -> Generator[Step, list[Any], dict[Choice, list[EpisodeRecord]]]:
        """Every branch's ends; a branch that has ended is its only end."""
        ends = {choice: [record(b)] for choice, b in branches.items() if b.done}
        open_ones = [choice for choice in branches if choice not in ends]
        rollouts = range(self.settings.value_rollouts)
        seed, _, sample = self.key
        phase_number = phase.turns[0].phase
        plays = [
            drive(
                branches[choice].fork,
                self.policy_map,
                seed,
                sample,
                ("value", phase_number, *choice, rollout),
            )
            for choice in open_ones
            for rollout in rollouts
        ]
        results = iter((yield PlayBatch(plays)))
        for choice in open_ones:
            ends[choice] = [next(results) for _ in rollouts]
            for end in ends[choice]:
                # Only calls of this rollout have an engine's fields.
                self.value_calls += len(end.calls) - sum(
                    turn.reply is not None for turn in branches[choice].turns
                )
                self.value_tokens += sum(len(call.output_ids) for call in end.calls)
        return ends

    def pick(self, turn: Turn, values: Sequence[float]) -> int:
        """Index of the candidate to execute."""
        if self.settings.select == "best":
            return values.index(max(values))
        if self.settings.select == "first":
            return 0
        return key_rng("select", *self.key, turn.agent, turn.turn).randrange(len(values))

    def sampled(self, episode: Episode) -> RolloutBatch:
        """The episode, and a row for every candidate, in call order."""
        decisions = self.decisions
        answers = {
            number: decision.candidates[decision.executed].answer
            for number, decision in decisions.items()
        }
        done = finished_record(episode, answers)
        rows: list[Call] = []
        executed: list[Call] = []
        for number, call in enumerate(done.calls):
            node, candidates, executed_index = decisions[number]
            for index, candidate in enumerate(candidates):
                changes = dict[str, Any](node=node, candidate=index, value=candidate.value)
                if index != executed_index:
                    changes |= {**candidate.fields, **engine_fields(candidate.answer)}
                    changes["executed"] = False
                row = replace(call, **changes)
                rows.append(row)
                if index == executed_index:
                    executed.append(row)
        finished = replace(done, calls=tuple(executed))
        return RolloutBatch([finished], rows, self.value_calls, self.value_tokens)
