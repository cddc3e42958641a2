"""Drivers of the rollout engine: a flowzoo episode directly, or any AEC environment by its API.

Driving an `Episode` lets a whole phase be generated at once (voting takes two generations); through
`last` and `step` agents come one at a time (voting takes four). The transcripts are equal.
`drive` is the play (see `flowzoo.agents.rollout.engine`) that takes a driver to the end of its
episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from flowzoo.agents.policy import Key, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.engine import EffectBatch, Play, RequestBatch, Response
from flowzoo.envs import Episode, EpisodeRecord, Message, Problem
from flowzoo.envs.episode.episode import LogEntry
from flowzoo.envs.episode.recording import record
from flowzoo.envs.records import changed_call
from flowzoo.envs.script import Effect, EffectResult, Found, Ran
from flowzoo.frozen import quick_maker, quick_tuple

_request = quick_maker(Request)


class OpenTurn(NamedTuple):
    """A turn that waits for a reply."""

    call: int
    agent: str
    role: str
    turn: int
    messages: Sequence[Message]
    keep: str = ""
    """The problem's text, which a prompt over its budget keeps."""
    quotes: tuple[str, ...] = ()
    """Texts that the messages may quote: earlier replies, passages, outputs."""


def make_request(policy_map: PolicyMap, key: Key, turn: OpenTurn, problem: str) -> Request:
    """The request for an open turn, with the token budgets of its agent.

    Args:
        policy_map: knows the budgets.
        key: names the call; see `Request.key`.
        turn: who is asked, and what.
        problem: reference of the problem.
    """
    lengths = policy_map.lengths(turn.agent)
    return _request(
        key,
        turn.agent,
        turn.role,
        turn.messages,
        problem,
        lengths.reply,
        lengths.prompt,
        turn.keep,
        turn.quotes,
    )


def quotable(log: Sequence[LogEntry]) -> tuple[str, ...]:
    """The texts of a transcript that later prompts may quote."""
    texts: list[str] = []
    for entry in log:
        if isinstance(entry, str):
            texts.append(entry)
        elif isinstance(entry, Found):
            texts += [passage.text for passage in entry.passages]
        elif isinstance(entry, Ran):
            texts += [text for case in entry.cases for text in (case.output, case.detail)]
    return tuple(texts)


def open_turns(episode: Episode) -> list[OpenTurn]:
    """The turns of an episode that wait for a reply."""
    waiting = episode.waiting
    if not waiting:
        return []
    agents, keep, quotes = episode.workflow.agents, episode.problem.text, quotable(episode.log)
    turns: list[OpenTurn] = []
    for turn in waiting:
        agent = turn.agent
        values = turn.call, agent, agents[agent][0], turn.turn, turn.messages, keep, quotes
        turns.append(quick_tuple(OpenTurn, values))
    return turns


class Driver(Protocol):
    """One episode under way, as the rollout engine sees it."""

    problem: str
    """Reference of the problem, part of every request's key."""

    def open_turns(self) -> list[OpenTurn]:
        """Turns that wait for replies; empty while effects are pending and at the end."""
        ...

    def effects(self) -> Sequence[tuple[Problem, Effect]]:
        """Pending effects with their problem."""
        ...

    def reply(self, agent: str, text: str) -> None:
        """Give a reply."""
        ...

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """Give the results of all pending effects."""
        ...

    def finish(self, answers: Mapping[int, Response]) -> EpisodeRecord:
        """The finished episode, with what the engines reported about each call."""
        ...


def engine_fields(answers: Mapping[int, Response]) -> dict[int, dict[str, Any]]:
    """The fields of `Call` that the policies reported, by call number."""
    return {
        number: {
            "policy": policy,
            "prompt_ids": done.prompt_ids,
            "output_ids": done.output_ids,
            "logps": done.logps,
            "finish": done.finish,
            "shortened": done.shortened,
            "version": done.version,
            "usage": done.usage,
        }
        for number, (policy, done) in answers.items()
    }


def with_answers(finished: EpisodeRecord, answers: Mapping[int, Response]) -> EpisodeRecord:
    """`finished` with policy, token ids and log-probs in every call that `answers` knows."""
    fields = engine_fields(answers)
    calls = [
        changed_call(call, fields.get(number, {})) for number, call in enumerate(finished.calls)
    ]
    return replace(finished, calls=tuple(calls))


class EpisodeDriver:
    """Drives an `Episode`: phases at once, effects batched by the engine."""

    def __init__(self, episode: Episode) -> None:
        """Take over `episode`."""
        self.episode = episode
        self.problem = episode.problem.id

    def open_turns(self) -> list[OpenTurn]:
        """See `Driver`."""
        return open_turns(self.episode)

    def effects(self) -> Sequence[tuple[Problem, Effect]]:
        """See `Driver`."""
        return self.episode.pending_effects if self.episode.effects else ()

    def reply(self, agent: str, text: str) -> None:
        """See `Driver`."""
        self.episode.reply(agent, text)

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """See `Driver`."""
        self.episode.resolve(results)

    def finish(self, answers: Mapping[int, Response]) -> EpisodeRecord:
        """See `Driver`."""
        return record(self.episode, engine_fields(answers))


def drive(
    start: Callable[[], Driver], policy_map: PolicyMap, seed: int, sample: int, suffix: Key = ()
) -> Play:
    """The play of one episode; returns its record.

    Args:
        start: makes the driver.
        policy_map: knows the token budgets of the agents.
        seed: first part of every request's key.
        sample: which episode of its problem this is, also part of the keys.
        suffix: last parts of the keys, which tell several plays of one job apart.
    """
    driver = start()
    problem = driver.problem
    answers: dict[int, Response] = {}
    while True:
        effects = driver.effects()
        if effects:
            driver.resolve((yield EffectBatch(effects)))
            continue
        turns = driver.open_turns()
        if not turns:
            return driver.finish(answers)
        requests: list[Request] = []
        for turn in turns:  # the cells of a comprehension would live as long as the episode
            key = (seed, problem, sample, turn.agent, turn.turn, *suffix)
            requests.append(make_request(policy_map, key, turn, problem))
        for turn, answer in zip(turns, (yield RequestBatch(requests)), strict=True):
            answers[turn.call] = answer
            driver.reply(turn.agent, answer.completion.text)
