"""Plays of single episodes: of a flowzoo episode directly, of any AEC environment by its API."""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flowzoo.agents.policy import Completion, EarlierTurn, Key, Request
from flowzoo.agents.policy_map import PolicyMap, role_of
from flowzoo.agents.rollout.engine import (
    EffectBatch,
    PendingEffect,
    Play,
    RequestBatch,
    Response,
)
from flowzoo.envs import Call, Episode, EpisodeRecord, Message, Problem, Workflow, WorkflowError
from flowzoo.envs.api.aec import WorkflowEnv
from flowzoo.envs.episode.episode import LogEntry
from flowzoo.envs.episode.recording import record
from flowzoo.envs.episode.turn import Turn, prompt_digest
from flowzoo.envs.external.text_env import EnvRun, TextEnv
from flowzoo.envs.readers.judgments import judge_messages, read_judgment
from flowzoo.envs.script import (
    JUDGE,
    NO_COUNTS,
    CountedReply,
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


def make_request(policy_map: PolicyMap, key: Key, episode: Episode, turn: Turn) -> Request:
    """The request for an open turn of an episode, with the token budgets of its agent."""
    lengths = policy_map.lengths(turn.agent)
    history = (
        EarlierTurn(other.messages, other.row)
        for other in reversed(episode.turns[: turn.call])
        if other.row is not None and (other.agent, other.tools) == (turn.agent, turn.tools)
    )
    return Request(
        key,
        turn.agent,
        episode.workflow.agents[turn.agent][0],
        turn.messages,
        episode.problem.id,
        lengths.reply,
        lengths.prompt,
        keep=episode.problem.text,
        quotes=quotable(episode.log),
        tools=turn.tools,
        earlier=newest_beginning(turn.messages, history),
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


def newest_beginning(
    messages: Sequence[Message], turns: Iterable[EarlierTurn]
) -> EarlierTurn | None:
    """The first of an agent's `turns`, the newest first, that a chat goes on from."""
    for turn in turns:
        size = len(turn.messages)
        goes_on = size < len(messages) and messages[size]["role"] == "assistant"
        if goes_on and list(messages[:size]) == list(turn.messages):
            return turn
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


def engine_fields(answer: Response) -> dict[str, Any]:
    """The fields of `Call` that a policy reported."""
    done = answer.completion
    return {
        "policy": answer.policy,
        "prompt_ids": done.prompt_ids,
        "output_ids": done.output_ids,
        "logps": done.logps,
        "finish": done.finish,
        "shortened": done.shortened,
        "version": done.version,
        "writers": done.writers,
        "usage": done.usage,
    }


def judge_request(policy_map: PolicyMap, judge: Judge, problem: Problem) -> Request:
    """The request for a judge's verdict; its key is its content, so that equal ones agree."""
    messages = judge_messages(judge, problem.text)
    lengths = policy_map.lengths(JUDGE)
    key = (JUDGE, prompt_digest(messages).hex())
    return Request(key, JUDGE, JUDGE, messages, problem.id, lengths.reply, lengths.prompt)


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
    answers = yield RequestBatch([judge_request(policy_map, *question) for question in questions])
    verdicts = iter(
        [
            judged(*question, answer.completion)
            for question, answer in zip(questions, answers, strict=True)
        ]
    )
    others = [job for job in jobs if not isinstance(job[1], Judge)]
    results = iter((yield EffectBatch(others)) if others else ())
    return [next(verdicts if isinstance(effect, Judge) else results) for _, effect in jobs]


def finished_record(episode: Episode, answers: Mapping[int, Response]) -> EpisodeRecord:
    """The record of a finished episode, with what the policies reported about each call."""
    return record(episode, {call: engine_fields(answer) for call, answer in answers.items()})


def drive(
    start: Callable[[], Episode],
    policy_map: PolicyMap,
    seed: int,
    sample: int,
    suffix: Key = (),
    finish: Callable[[Episode, Mapping[int, Response]], object] = finished_record,
) -> Play:
    """The play of the episode that `start` opens; returns what `finish` makes of it."""
    # Keys of requests begin with `seed`, problem and `sample`; `suffix` tells several plays of one
    # job apart.
    episode = start()
    problem = episode.problem.id
    answers: dict[int, Response] = {}
    while not episode.done:
        if episode.effects:
            episode.resolve((yield from carry_out(policy_map, episode.pending_effects)))
            continue
        turns = episode.waiting
        requests: list[Request] = []
        for turn in turns:  # the cells of a comprehension would live as long as the episode
            key = (seed, problem, sample, turn.agent, turn.turn, *suffix)
            requests.append(make_request(policy_map, key, episode, turn))
        for turn, answer in zip(turns, (yield RequestBatch(requests)), strict=True):
            answers[turn.call] = answer
            episode.reply(turn.agent, reply_text(episode.workflow, answer.completion))
    return finish(episode, answers)


def drive_env(
    env: Any,
    problem: str,
    policy_map: PolicyMap,
    seed: int,
    sample: int,
    observe: Callable[[Any], list[Message]],
    max_calls: int,
) -> Play:
    """The play of an AEC environment that has been reset; returns its record.

    Agents are asked one at a time, and the environment takes replies as they are.
    """
    core = getattr(env, "unwrapped", env)
    workflow_env = core if isinstance(core, WorkflowEnv) else None
    run, turns, answers = EnvRun(TextEnv(env), problem), list[Request](), dict[int, Response]()
    while (turn := run.next_turn()) is not None:
        if workflow_env is None and len(turns) == max_calls:
            raise WorkflowError(
                f"{env} has been answered {max_calls:,} times and goes on: give it a limit of its "
                "own, e.g. max_cycles, or set max_calls=N to allow more",
                problem,
            )
        agent, messages = turn.agent, observe(turn.observation)
        # An environment of others may call anything `tools`.
        tools = offered(turn.observation) if workflow_env else ()
        rows = [sampled_row(answer.completion) for answer in answers.values()]
        history = (
            EarlierTurn(other.messages, row)
            for other, row in zip(reversed(turns), reversed(rows), strict=True)
            if row is not None and (other.agent, other.tools) == (agent, tools)
        )
        lengths = policy_map.lengths(agent)
        request = Request(
            (seed, problem, sample, agent, turn.turn),
            agent,
            role_of(agent),
            messages,
            problem,
            lengths.reply,
            lengths.prompt,
            quotes=tuple(answer.completion.text for answer in answers.values()),
            tools=tools,
            earlier=newest_beginning(messages, history),
        )
        (answer,) = yield RequestBatch([request])
        answers[len(turns)] = answer
        turns.append(request)
        run.act(answer.completion.text)
    done = workflow_env.record() if workflow_env else foreign_record(env, run, turns, answers)
    key = f"{problem}#{sample}"
    # An environment that was stepped before has more calls than answers.
    calls = [
        replace(call, episode=key, **(engine_fields(answers[number]) if number in answers else {}))
        for number, call in enumerate(done.calls)
    ]
    return replace(done, episode=key, calls=tuple(calls))


def foreign_record(
    env: object, run: EnvRun, turns: Sequence[Request], answers: Mapping[int, Response]
) -> EpisodeRecord:
    """The record of an environment of others, by its requests and their answers.

    The score is the mean return of the agents, and every call is paid its agent's return.
    """
    calls = [
        Call(
            turn.problem,
            "",
            turn.agent,
            turn.role,
            slot=0,
            turn=int(turn.key[-1]),
            phase=number,
            messages=tuple(turn.messages),
            reply=answers[number].completion.text,
            strict=True,
            lenient=True,
            role_score=None,
            parts={},
            reward=run.returns[turn.agent],
            state_hash="",
            prompts="",
        )
        for number, turn in enumerate(turns)
    ]
    return EpisodeRecord(
        workflow=str(env),
        task="",
        problem=run.key,
        episode="",
        text="",
        gold="",
        score=sum(run.returns.values()) / max(1, len(run.returns)),
        answer=None,
        truncated=run.truncated,
        facts={},
        returns=run.returns,
        calls=tuple(calls),
    )
