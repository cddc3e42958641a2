"""What the rollout engine drives: a flowzoo episode directly, or any AEC environment by its API.

Driving an `Episode` lets a whole phase be generated at once (voting takes two generations); through
`last` and `step` agents come one at a time (voting takes four). The transcripts are equal.
`drive` is the play (see `flowzoo.agents.rollout.engine`) that takes a driver to the end of its
episode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from flowzoo.agents.names import role_of
from flowzoo.agents.policy import Key, Request
from flowzoo.agents.rollout.engine import EffectBatch, Play, RequestBatch, Response
from flowzoo.agents.roster import Roster
from flowzoo.envs import Call, Episode, EpisodeRecord, Message, Problem
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.episode.episode import LogEntry
from flowzoo.envs.episode.recording import record
from flowzoo.envs.script import Effect, EffectResult, Found, Ran
from flowzoo.errors import UsageError


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
    """What the messages may quote: earlier replies, passages, outputs."""


def make_request(roster: Roster, key: Key, turn: OpenTurn, problem: str) -> Request:
    """The request for an open turn, with the token budgets of its agent.

    Args:
        roster: knows the budgets.
        key: names the call; see `Request.key`.
        turn: who is asked, and what.
        problem: reference of the problem.
    """
    lengths = roster.lengths(turn.agent)
    return Request(
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
    return [
        OpenTurn(
            turn.call, turn.agent, agents[turn.agent][0], turn.turn, turn.messages, keep, quotes
        )
        for turn in waiting
    ]


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
        }
        for number, (policy, done) in answers.items()
    }


def with_answers(finished: EpisodeRecord, answers: Mapping[int, Response]) -> EpisodeRecord:
    """`finished` with policy, token ids and log-probs in every call that `answers` knows."""
    fields = engine_fields(answers)
    calls = [replace(call, **fields.get(number, {})) for number, call in enumerate(finished.calls)]
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
        problem = self.episode.problem
        return [(problem, effect) for effect in self.episode.effects]

    def reply(self, agent: str, text: str) -> None:
        """See `Driver`."""
        self.episode.reply(agent, text)

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """See `Driver`."""
        self.episode.resolve(results)

    def finish(self, answers: Mapping[int, Response]) -> EpisodeRecord:
        """See `Driver`."""
        return record(self.episode, engine_fields(answers))


def chat(obs: Any) -> list[Message]:
    """The messages of an observation: flowzoo's `{"messages": [...]}`, a chat, or a string.

    Raises:
        UsageError: anything else; give the rollout an `observe=` function then.
    """
    if isinstance(obs, Mapping) and "messages" in obs:
        obs = obs["messages"]
    if isinstance(obs, str):
        return [{"role": "user", "content": obs}]
    if isinstance(obs, (list, tuple)) and all(isinstance(message, Mapping) for message in obs):
        return [dict(message) for message in obs]
    raise UsageError(
        f"cannot read an observation of type {type(obs).__name__} as chat messages; pass "
        "observe=(observation -> list of messages)"
    )


class AECDriver:
    """Drives any AEC environment through `last` and `step`, one agent at a time.

    The environment must have been reset. Its steps run on the event loop's thread.
    """

    def __init__(
        self, env: Any, problem: str, key: str, observe: Callable[[Any], list[Message]] = chat
    ) -> None:
        """Take over `env`; `problem` is the reference used in request keys."""
        self.problem = problem
        self._env, self._key, self._observe = env, key, observe
        self._returns: dict[str, float] = dict.fromkeys(env.possible_agents, 0.0)
        self._calls: list[Call] = []
        self._turns: dict[str, int] = {}
        self._open: OpenTurn | None = None
        self._truncated = False
        self._next()

    def _next(self) -> None:
        env = self._env
        self._open = None
        while env.agents:
            agent = env.agent_selection
            obs, reward, terminated, truncated, _ = env.last()
            self._returns[agent] += float(reward)
            if not (terminated or truncated):
                turn = self._turns.get(agent, 0)
                self._turns[agent] = turn + 1
                messages = self._observe(obs)
                quotes = tuple(call.reply for call in self._calls)
                self._open = OpenTurn(
                    len(self._calls), agent, role_of(agent), turn, messages, quotes=quotes
                )
                return
            self._truncated |= bool(truncated)
            env.step(None)

    def open_turns(self) -> list[OpenTurn]:
        """See `Driver`."""
        return [self._open] if self._open else []

    def effects(self) -> Sequence[tuple[Problem, Effect]]:
        """None: an AEC environment does its own work."""
        return ()

    def reply(self, agent: str, text: str) -> None:
        """See `Driver`."""
        turn = self._open
        if turn is None or turn.agent != agent:
            raise UsageError(f"{agent} has no open turn")
        self._calls.append(
            Call(
                problem=self.problem,
                episode=self._key,
                agent=agent,
                role=turn.role,
                slot=0,
                turn=turn.turn,
                phase=turn.call,
                messages=tuple(turn.messages),
                reply=text,
                strict=True,
                lenient=True,
                truth=None,
                parts={},
                reward=0.0,
                state_hash="",
                prompts="",
            )
        )
        self._env.step(text)
        self._next()

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """Never called, since there are no effects."""
        raise UsageError("an AEC environment has no effects to resolve")

    def finish(self, answers: Mapping[int, Response]) -> EpisodeRecord:
        """The environment's own record if it is one of ours, else what `last` told.

        For other environments the score is the mean return of the agents, and every call is paid
        its agent's return.
        """
        core = getattr(self._env, "unwrapped", self._env)
        if isinstance(core, WorkflowEnv):
            done = core.record()
            calls = tuple(replace(call, episode=self._key) for call in done.calls)
            return with_answers(replace(done, episode=self._key, calls=calls), answers)
        returns = self._returns
        finished = EpisodeRecord(
            workflow=str(self._env),
            task="",
            problem=self.problem,
            episode=self._key,
            text="",
            gold="",
            score=sum(returns.values()) / max(1, len(returns)),
            answer=None,
            truncated=self._truncated,
            facts={},
            returns=returns,
            calls=tuple(replace(call, reward=returns[call.agent]) for call in self._calls),
        )
        return with_answers(finished, answers)


def drive(
    start: Callable[[], Driver], roster: Roster, seed: int, sample: int, suffix: Key = ()
) -> Play:
    """The play of one episode; returns its record.

    Args:
        start: makes the driver.
        roster: knows the token budgets of the agents.
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
        requests = [
            make_request(
                roster, (seed, problem, sample, turn.agent, turn.turn, *suffix), turn, problem
            )
            for turn in turns
        ]
        for turn, answer in zip(turns, (yield RequestBatch(requests)), strict=True):
            answers[turn.call] = answer
            driver.reply(turn.agent, answer.completion.text)
