"""Drives an AEC environment, ours or another's, through `last` and `step`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowzoo.agents.names import role_of
from flowzoo.agents.rollout.drivers import OpenTurn, with_answers
from flowzoo.agents.rollout.engine import Response
from flowzoo.envs import Call, EpisodeRecord, Message, Problem, WorkflowError
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.external.run import EnvRun
from flowzoo.envs.external.text_env import TextEnv, chat
from flowzoo.envs.script import Effect, EffectResult
from flowzoo.envs.workflow import MOST_CALLS
from flowzoo.errors import UsageError


class AECDriver:
    """Drives any AEC environment through `last` and `step`, one agent at a time.

    The environment must have been reset, and takes replies as they are. Its steps run on the event
    loop's thread. To train in an environment, or to play it with hooks, see
    `flowzoo.envs.external.workflow`.
    """

    def __init__(
        self,
        env: Any,
        problem: str,
        key: str,
        observe: Callable[[Any], list[Message]] = chat,
        max_calls: int = MOST_CALLS,
    ) -> None:
        """Take over `env`.

        Args:
            env: the environment.
            problem: the reference used in request keys.
            key: names the episode.
            observe: turns an observation into chat messages.
            max_calls: most calls of an episode; an environment of flowzoo's has its own limit.
        """
        self.problem = problem
        self._env, self._key, self._observe = env, key, observe
        self._run = EnvRun(TextEnv(env), problem)
        self._calls: list[Call] = []
        is_ours = isinstance(getattr(env, "unwrapped", env), WorkflowEnv)
        self._max_calls = None if is_ours else max_calls
        self._open: OpenTurn | None = None
        self._next()

    def _next(self) -> None:
        self._open = None
        turn = self._run.next_turn()
        if turn is not None:
            if len(self._calls) == self._max_calls:
                raise WorkflowError(
                    f"{self._env} has been answered {self._max_calls:,} times and goes on: give it "
                    "a limit of its own, e.g. max_cycles, or set max_calls=N to allow more",
                    self.problem,
                )
            messages = self._observe(turn.observation)
            quotes = tuple(call.reply for call in self._calls)
            call, role = len(self._calls), role_of(turn.agent)
            self._open = OpenTurn(call, turn.agent, role, turn.turn, messages, quotes=quotes)

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
                role_score=None,
                parts={},
                reward=0.0,
                state_hash="",
                prompts="",
            )
        )
        self._run.act(text)
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
        returns = self._run.returns
        finished = EpisodeRecord(
            workflow=str(self._env),
            task="",
            problem=self.problem,
            episode=self._key,
            text="",
            gold="",
            score=sum(returns.values()) / max(1, len(returns)),
            answer=None,
            truncated=self._run.truncated,
            facts={},
            returns=returns,
            calls=tuple(replace(call, reward=returns[call.agent]) for call in self._calls),
        )
        return with_answers(finished, answers)
