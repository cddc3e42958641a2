"""Drivers of the rollout engine: a flowzoo episode directly, or any AEC environment by its API."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from flowzoo.agents.policy import Completion, EarlierTurn, Key, Request
from flowzoo.agents.policy_map import PolicyMap, role_of
from flowzoo.agents.rollout.engine import (
    EffectBatch,
    PendingEffect,
    Play,
    RequestBatch,
    Response,
)
from flowzoo.envs import (
    Call,
    Episode,
    EpisodeRecord,
    Message,
    Problem,
    Workflow,
    WorkflowError,
)
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.episode.episode import LogEntry
from flowzoo.envs.episode.recording import record
from flowzoo.envs.episode.turn import Turn, prompt_digest
from flowzoo.envs.external.text_env import EnvRun, TextEnv, chat
from flowzoo.envs.readers.judgments import judge_messages, read_judgment
from flowzoo.envs.records import changed_call
from flowzoo.envs.script import (
    JUDGE,
    NO_COUNTS,
    CountedReply,
    Effect,
    EffectResult,
    Judge,
    JudgeResult,
    ReplyCounts,
    RunResult,
    SampledRow,
    SearchResult,
    ToolResult,
)
from flowzoo.envs.tools import Tool
from flowzoo.envs.workflow import MOST_CALLS
from flowzoo.errors import UsageError
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
    tools: tuple[Tool, ...] = ()
    """Tools that the reply may call."""
    earlier: EarlierTurn | None = None
    """The agent's newest turn that the messages go on from."""


def make_request(policy_map: PolicyMap, key: Key, turn: OpenTurn, problem: str) -> Request:
    """The request for an open turn, with the token budgets of its agent."""
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
        turn.tools,
        turn.earlier,
    )


def quotable(log: Sequence[LogEntry]) -> tuple[str, ...]:
    """The texts of a transcript that later prompts may quote."""
    texts: list[str] = []
    for entry in log:
        if isinstance(entry, str):
            texts.append(entry)
        elif isinstance(entry, SearchResult):
            texts += [passage.text for passage in entry.passages]
        elif isinstance(entry, JudgeResult | ToolResult):
            texts.append(entry.text)
        elif isinstance(entry, RunResult):
            texts += [text for case in entry.cases for text in (case.output, case.detail)]
    return tuple(texts)


def offered(observation: object) -> tuple[Tool, ...]:
    """The tools in an observation of a workflow's environment."""
    tools = observation.get("tools", ()) if isinstance(observation, dict) else ()
    return tuple(map(Tool.of_schema, tools))


def _no_tools(observation: object) -> tuple[Tool, ...]:
    # An environment of others may call anything `tools`.
    return ()


def open_turns(episode: Episode) -> list[OpenTurn]:
    """The turns of an episode that wait for a reply."""
    waiting = episode.waiting
    if not waiting:
        return []
    agents, keep, quotes = episode.workflow.agents, episode.problem.text, quotable(episode.log)
    turns: list[OpenTurn] = []
    for turn in waiting:
        agent = turn.agent
        role = agents[agent][0]
        before = None
        if turn.turn:
            answered = [(other, other.row) for other in episode.turns]
            before = earlier_turn(agent, turn.messages, turn.tools, answered)
        values = turn.call, agent, role, turn.turn, turn.messages, keep, quotes, turn.tools, before
        turns.append(quick_tuple(OpenTurn, values))
    return turns


def earlier_turn(
    agent: str,
    messages: Sequence[Message],
    tools: tuple[Tool, ...],
    turns: Sequence[tuple[Turn | OpenTurn, SampledRow | None]],
) -> EarlierTurn | None:
    """The newest of the `turns` that an agent's chat goes on from; None if there is none."""
    for turn, row in reversed(turns):
        if row is None or turn.agent != agent or turn.tools != tools:
            continue
        size = len(turn.messages)
        goes_on = size < len(messages) and messages[size]["role"] == "assistant"
        if goes_on and list(messages[:size]) == list(turn.messages):
            return EarlierTurn(turn.messages, row)
    return None


def sampled_row(completion: Completion) -> SampledRow | None:
    """The token ids of a completion; None if they are unknown, or the prompt was shortened."""
    if completion.shortened or not completion.prompt_ids:
        return None
    stopped = completion.finish == "stop"
    reply = completion.output_ids[: -1 if stopped else None]
    return SampledRow(completion.prompt_ids, reply, completion.writers)


def reply_text(workflow: Workflow, completion: Completion) -> str:
    """The text of a completion, with its token ids, and its counts if the workflow wants them."""
    row, counts = sampled_row(completion), NO_COUNTS
    if workflow.counts_replies:
        counts = ReplyCounts(
            "length" if completion.finish == "length" else "stop",
            completion.prompt_tokens or 0,
            completion.output_tokens or 0,
        )
    elif row is None:
        return completion.text
    return CountedReply(completion.text, counts, row)


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

    def reply(self, agent: str, completion: Completion) -> None:
        """Give a reply."""
        ...

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """Give the results of all pending effects."""
        ...

    def finish(self, answers: Mapping[int, Response]) -> Any:
        """The finished episode, with what the engines reported about each call: its record."""
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
            "writers": done.writers,
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
        self.episode = episode
        self.problem = episode.problem.id

    def open_turns(self) -> list[OpenTurn]:
        """See `Driver`."""
        return open_turns(self.episode)

    def effects(self) -> Sequence[tuple[Problem, Effect]]:
        """See `Driver`."""
        return self.episode.pending_effects if self.episode.effects else ()

    def reply(self, agent: str, completion: Completion) -> None:
        """See `Driver`."""
        self.episode.reply(agent, reply_text(self.episode.workflow, completion))

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """See `Driver`."""
        self.episode.resolve(results)

    def finish(self, answers: Mapping[int, Response]) -> EpisodeRecord:
        """See `Driver`."""
        return record(self.episode, engine_fields(answers))


def judge_request(policy_map: PolicyMap, judge: Judge, problem: Problem) -> Request:
    """The request for a judge's verdict; its key is its content, so that equal ones agree."""
    messages = judge_messages(judge, problem.text)
    lengths = policy_map.lengths(JUDGE)
    key = (JUDGE, prompt_digest(messages).hex())
    return _request(key, JUDGE, JUDGE, messages, problem.id, lengths.reply, lengths.prompt)


def judged(judge: Judge, problem: Problem, completion: Completion) -> JudgeResult:
    """The verdict in a completion; unreadable where prompt or reply were cut."""
    if completion.finish == "length" or completion.shortened:
        return JudgeResult(None, completion.text)
    return read_judgment(judge, problem.text, completion.text)


def carry_out(
    policy_map: PolicyMap, jobs: Sequence[PendingEffect]
) -> Generator[RequestBatch | EffectBatch, list[Any], list[EffectResult]]:
    """Carry out effects: questions to a judge by its policy, the others by the resolver."""
    questions = [(effect, problem) for problem, effect in jobs if isinstance(effect, Judge)]
    if not questions:
        return (yield EffectBatch(jobs))
    requests = [judge_request(policy_map, *question) for question in questions]
    answers = yield RequestBatch(requests)
    verdicts = iter(
        [
            judged(*question, answer.completion)
            for question, answer in zip(questions, answers, strict=True)
        ]
    )
    others = [job for job in jobs if not isinstance(job[1], Judge)]
    results = iter((yield EffectBatch(others)) if others else ())
    return [next(verdicts if isinstance(effect, Judge) else results) for _, effect in jobs]


def drive(
    start: Callable[[], Driver], policy_map: PolicyMap, seed: int, sample: int, suffix: Key = ()
) -> Play:
    """The play of one episode, whose driver `start` makes; returns its record."""
    # Keys of requests begin with `seed`, problem and `sample`; `suffix` tells several plays of one
    # job apart.
    driver = start()
    problem = driver.problem
    answers: dict[int, Response] = {}
    while True:
        effects = driver.effects()
        if effects:
            driver.resolve((yield from carry_out(policy_map, effects)))
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
            driver.reply(turn.agent, answer.completion)


class AECDriver:
    """Drives any AEC environment through `last` and `step`, one agent at a time.

    The environment must have been reset, and takes replies as they are.
    """

    def __init__(
        self,
        env: Any,
        problem: str,
        key: str,
        observe: Callable[[Any], list[Message]] = chat,
        max_calls: int = MOST_CALLS,
    ) -> None:
        self.problem = problem
        self._env, self._key, self._observe = env, key, observe
        self._run = EnvRun(TextEnv(env), problem)
        self._calls: list[Call] = []
        self._said: list[tuple[OpenTurn, SampledRow | None]] = []
        is_ours = isinstance(getattr(env, "unwrapped", env), WorkflowEnv)
        self._max_calls = None if is_ours else max_calls
        self._offered = offered if is_ours else _no_tools
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
            tools = self._offered(turn.observation)
            self._open = OpenTurn(
                call,
                turn.agent,
                role,
                turn.turn,
                messages,
                "",
                quotes,
                tools,
                earlier_turn(turn.agent, messages, tools, self._said),
            )

    def open_turns(self) -> list[OpenTurn]:
        """See `Driver`."""
        return [self._open] if self._open else []

    def effects(self) -> Sequence[tuple[Problem, Effect]]:
        """Return nothing: an AEC environment does its own work."""
        return ()

    def reply(self, agent: str, completion: Completion) -> None:
        """See `Driver`."""
        turn, text = self._open, completion.text
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
        self._said.append((turn, sampled_row(completion)))
        self._run.act(text)
        self._next()

    def resolve(self, results: Sequence[EffectResult]) -> None:
        """Raise: there are no effects."""
        raise UsageError("an AEC environment has no effects to resolve")

    def finish(self, answers: Mapping[int, Response]) -> EpisodeRecord:
        """The environment's own record if it is one of ours, else what `last` told."""
        # For other environments the score is the mean return of the agents, and every call is paid
        # its agent's return.
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
