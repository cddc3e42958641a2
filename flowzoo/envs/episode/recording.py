"""Conversion of finished episodes to plain records: rewards, returns, state hashes, calls."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

from flowzoo.aliases import AgentInfo
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.turn import Turn
from flowzoo.envs.readers.judgments import judge_messages
from flowzoo.envs.records import Call, EpisodeRecord, Judgment
from flowzoo.envs.script import Grade, Judge, JudgeResult, Outcome, Reply
from flowzoo.envs.settings import plain_setting
from flowzoo.envs.tasks.task import Problem
from flowzoo.envs.workflow import FinishedEpisode, RubricCall, Workflow
from flowzoo.errors import UsageError
from flowzoo.functions import FunctionSetting, call_contained, call_noted
from flowzoo.waits import function_call


def abstains(workflow: Workflow, readable: bool) -> bool:
    """True if an unreadable reply does not share the team's outcome (preset `strict`)."""
    return workflow.preset == "strict" and not readable


def reward_parts(
    workflow: Workflow,
    score: float,
    readable: bool,
    role_score: float | None,
    form: float | None = None,
    unanswered: float = 0.0,
) -> dict[str, float]:
    """Reward parts of one call: `team`, `local` and `format`.

    `form` replaces `readable` in the local part. An abstaining reply gets `unanswered`, the score
    of an episode without an answer, but at most its team's score.
    """
    # `local` is absent without a role score; an environment that pays its agents (`Payoffs`)
    # replaces it with the agent's return.
    team = min(unanswered, score) if abstains(workflow, readable) else score
    parts = {"team": team}
    if role_score is not None:
        for_form, for_role = workflow.local_weights
        parts["local"] = for_form * (readable if form is None else form) + for_role * role_score
    if workflow.format_penalty:
        parts["format"] = 0.0 if readable else -workflow.format_penalty
    return parts


def combine(
    workflow: Workflow, role: str, parts: Mapping[str, float], outcome: float | None = None
) -> float:
    """Combine the reward of one call by the credit rule; `outcome` replaces the part `team`."""
    rule = workflow.credit
    if callable(rule):
        given = parts if outcome is None else {**parts, "team": outcome}
        return user_number(rule, f"{workflow.name}: credit {function_name(rule)}", given)
    if outcome is None:
        outcome = parts["team"]
    if rule == "team":
        return outcome + parts.get("format", 0.0)
    if "local" not in parts:
        raise UsageError(
            f"credit={rule!r} needs the role score of every reply, and {workflow.name} recorded "
            f'none for role {role!r}: use credit="team", or yield RoleScore(reply, value) in play.'
        )
    team = workflow.alpha * outcome if rule == "mix" else 0.0
    return team + parts["local"] + parts.get("format", 0.0)


def function_name(function: object) -> str:
    """Name of a function for messages: the text of its setting, or the function's own name."""
    if isinstance(function, FunctionSetting):
        return function.name
    return str(plain_setting(function))


def user_number(function: Callable[..., object], name: str, *given: object) -> float:
    """The value of a user's function, a finite number."""
    with function_call(name):
        value = call_contained(function, name, *given)
    if not isinstance(value, Real):
        came = f"{type(value).__name__} {value!r:.60}"
        raise UsageError(f"{name} must return a number, got {came}")
    if not math.isfinite(value):
        raise UsageError(f"{name} must return a finite number, got {value}")
    return float(value)


def agent_returns(agents: Iterable[str], rewards: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Mean reward per agent over its calls; 0 for an agent that was never asked."""
    # The mean, not the sum: the outcome counts once, however often an agent was asked.
    sums, counts = dict.fromkeys(agents, 0.0), Counter[str]()
    for agent, reward in rewards:
        sums[agent] += reward
        counts[agent] += 1
    for agent, count in counts.items():
        sums[agent] /= count
    return sums


class EpisodeRewards(NamedTuple):
    """Score, rewards and returns of a finished episode."""

    score: float
    parts: list[dict[str, float]]  # reward parts of each call, in call order
    rewards: list[float]  # reward of each call
    returns: dict[str, float]  # return of each agent
    calls: list[tuple[Turn, Reply]]  # the turns that were answered, with their replies


def state_hashes(episode: Episode, lengths: Iterable[int]) -> dict[int, str]:
    """Hashes of the settings, the problem and a prefix of the log, for prefixes of `lengths`."""
    problem, log = episode.problem, episode.log
    hasher = hashlib.blake2b(episode.workflow.spec_digest, digest_size=16)
    # With the text: an id does not identify the content of its file.
    hasher.update(_feed(b"p", problem.id) + _feed(b"p", problem.text))
    hashes: dict[int, str] = {}
    for start, length in pairwise([0, *sorted(set(lengths))]):
        for entry in log[start:length]:
            is_reply = isinstance(entry, str)
            hasher.update(_feed(b"r", entry) if is_reply else _feed(b"e", repr(tuple(entry))))
        hashes[length] = hasher.hexdigest()
    return hashes


def _feed(kind: bytes, text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return b"%b%d:%b" % (kind, len(raw), raw)


def state_hash(episode: Episode) -> str:
    """Hash of all replies and results so far."""
    (state,) = state_hashes(episode, [len(episode.log)]).values()
    return state


def answered_turns(episode: Episode) -> list[tuple[Turn, Reply]]:
    """The turns that were answered, with their replies, in call order."""
    return [(turn, turn.reply) for turn in episode.turns if turn.reply is not None]


def episode_rewards(episode: Episode) -> EpisodeRewards:
    """The rewards of a finished episode; a truncated one scores like no answer.

    They are computed once: a reward or credit rule may draw random numbers or ask a model.
    """
    if episode.settled is None:
        episode.settled = _settle(episode)
    return episode.settled


def _settle(episode: Episode) -> EpisodeRewards:
    outcome, workflow, cut = episode.finished(), episode.workflow, episode.truncated
    score = _score(episode, outcome.answer, float(outcome.score or 0.0))
    turns, payoffs = answered_turns(episode), outcome.payoffs
    agents, roles = [turn.agent for turn, _ in turns], workflow.agents
    readable = [reply.strict is not None for _, reply in turns]
    unanswered = 0.0
    if workflow.episode_reward and any(abstains(workflow, is_readable) for is_readable in readable):
        unanswered = _score(episode, None, 0.0)
    parts = [
        reward_parts(
            workflow,
            score,
            is_readable,
            episode.role_scores.get(turn.call),
            episode.forms.get(turn.call),
            unanswered,
        )
        for (turn, _), is_readable in zip(turns, readable, strict=True)
    ]
    if workflow.credit == "rubric":
        right = (episode.role_scores.get(turn.call, 0.0) >= 1.0 for turn, _ in turns)
        team_right = (part["team"] >= 1.0 for part in parts)
        columns = (roles[agent][0] for agent in agents), readable, right, team_right
        for part, value in zip(parts, workflow.rubric([*map(RubricCall, *columns)]), strict=True):
            part["local"] = value
    elif payoffs is not None:
        for part, agent in zip(parts, agents, strict=True):
            part["local"] = payoffs.returns[agent]
    if cut:
        rewards = [score] * len(turns)
    else:
        rewards = [
            combine(workflow, roles[agent][0], part)
            for agent, part in zip(agents, parts, strict=True)
        ]
    if payoffs is not None and not cut:
        returns = dict(payoffs.returns)
    else:
        returns = agent_returns(roles, zip(agents, rewards, strict=True))
    return EpisodeRewards(score, parts, rewards, returns, turns)


def earned_by_itself(episode: Episode, settled: EpisodeRewards) -> list[tuple[float, float | None]]:
    """`immediate` and `share` of each call; see `Call`."""
    payoffs, workflow = episode.finished().payoffs, episode.workflow
    if episode.truncated:
        return [(0.0, None)] * len(settled.calls)
    earned: list[tuple[float, float | None]] = []
    last = {turn.agent: turn.call for turn, _ in settled.calls}
    for (turn, _), part, reward in zip(settled.calls, settled.parts, settled.rewards, strict=True):
        role = workflow.agents[turn.agent][0]
        alone = combine(workflow, role, part, 0.0)  # the rest is the share of the outcome
        if payoffs is None:
            earned.append((alone, None))
            continue
        if payoffs.rewards:
            paid = payoffs.rewards[turn.call]
        else:  # an agent's pay comes with its last call
            paid = payoffs.returns[turn.agent] if last[turn.agent] == turn.call else 0.0
        earned.append((combine(workflow, role, {**part, "local": paid}, 0.0), reward - alone))
    return earned


def _score(episode: Episode, answer: str | None, score: float) -> float:
    reward = episode.workflow.episode_reward
    if reward is None:
        return score
    replies = tuple((turn.agent, turn.said) for turn, _ in answered_turns(episode))
    facts = dict(episode.finished().facts)
    finished = FinishedEpisode(episode.problem, answer, score, facts, replies)
    source = f"{episode.workflow.name}, problem {episode.problem.id}"
    name = f"{source}: episode_reward {function_name(reward)}"
    return call_noted(user_number, source, reward, name, finished)


def record(
    episode: Episode, engine: Mapping[int, Mapping[str, Any]] = MappingProxyType({})
) -> EpisodeRecord:
    """The finished episode as plain records."""
    outcome, workflow, problem = episode.finished(), episode.workflow, episode.problem
    settled = episode_rewards(episode)
    hashes = state_hashes(episode, [turn.logged for turn, _ in settled.calls])
    earned = earned_by_itself(episode, settled)
    rows = zip(settled.calls, settled.parts, settled.rewards, earned, strict=True)
    calls = [
        Call(
            problem=problem.id,
            episode=episode.key,
            agent=turn.agent,
            role=workflow.agents[turn.agent][0],
            slot=turn.slot,
            turn=turn.turn,
            phase=turn.phase,
            messages=tuple(turn.observe()),
            reply=turn.said,
            strict=reply.strict is not None,
            lenient=reply.lenient is not None,
            role_score=episode.role_scores.get(turn.call),
            parts=parts.copy(),
            reward=reward,
            state_hash=hashes[turn.logged],
            prompts=workflow.prompts_id,
            immediate=alone,
            name=workflow.trajectory(turn.agent),
            share=share,
            abstained=abstains(workflow, reply.strict is not None),
            tools=tuple(tool.schema() for tool in turn.tools),
            fault=reply.fault,
            **engine.get(turn.call, {}),
        )
        for (turn, reply), parts, reward, (alone, share) in rows
    ]
    return EpisodeRecord(
        workflow=workflow.name,
        task=workflow.task.name,
        problem=problem.id,
        episode=episode.key,
        text=problem.text,
        gold=problem.gold,
        score=settled.score,
        answer=outcome.answer,
        truncated=episode.truncated,
        facts=dict(outcome.facts),
        returns=settled.returns.copy(),
        calls=tuple(calls),
        judgments=judgments(episode) if workflow.needs_judge else (),
        level=problem.meta.get("level"),
        pay=agent_pay(episode),
    )


def agent_pay(episode: Episode) -> dict[str, float]:
    """Pay by agent of a finished episode; see `EpisodeRecord.pay`."""
    workflow, payoffs = episode.workflow, episode.finished().payoffs
    if payoffs is not None:
        return dict(payoffs.returns)
    checked = workflow.runs_programs or workflow.task.runs_programs or episode.truncated
    if checked or any(type(effect) is Grade for effect in episode.requested):
        return {}
    scores: dict[str, list[float]] = {}
    for call, score in sorted(episode.role_scores.items()):
        scores.setdefault(episode.turns[call].agent, []).append(score)
    return {agent: sum(values) / len(values) for agent, values in scores.items()}


def judgments(episode: Episode) -> tuple[Judgment, ...]:
    """The verdicts of judges in an episode, with their chats."""
    results = [entry for entry in episode.log if not isinstance(entry, str)]
    rows: list[Judgment] = []
    for judge, result in zip(episode.requested, results, strict=True):
        if isinstance(judge, Judge) and isinstance(result, JudgeResult):
            chat = tuple(judge_messages(judge, episode.problem.text))
            truth = episode.role_scores.get(judge.of.call)
            rows.append(Judgment(judge.of.call, judge.name, chat, result.text, result.score, truth))
    return tuple(rows)


PER_CALL = ("role_scores", "parts", "strict", "lenient")
"""Keys of an `info` with a list."""


def first_infos(
    agents: Mapping[str, tuple[str, int]], problem: Problem, key: str
) -> dict[str, AgentInfo]:
    """The `info` of each agent before it is asked, with the keys that it keeps to the end."""
    # Of the problem and the episode: `problem`, `index` (in the split), `episode_key` (as in
    # records; Gymnasium writes statistics under "episode"). Of the agent: `role`, and of its latest
    # ask `phase`, `slot` and `turn` (-1: none yet), `acted` (it has been asked). The others are
    # set at the end; those in `PER_CALL` have an entry for every call of the agent.
    of_problem = {"problem": problem.id, "index": problem.index, "episode_key": key}
    of_turn = {"phase": -1, "slot": -1, "turn": -1, "acted": False}
    return {
        agent: {"role": role, **of_problem, **of_turn, **_outcome_info()}
        for agent, (role, _) in agents.items()
    }


def _outcome_info(
    pay: float = 0.0, score: float = 0.0, outcome: Outcome | None = None, truncated: bool = False
) -> AgentInfo:
    return {
        "return": pay,
        **{name: [] for name in PER_CALL},
        "score": score,
        "answer": outcome and outcome.answer,
        "truncated": truncated,
        "facts": dict(outcome.facts) if outcome else {},
    }


def fresh_info(info: AgentInfo) -> AgentInfo:
    """Copy an info with its mutable values."""
    return {
        name: value.copy() if isinstance(value, (list, dict)) else value
        for name, value in info.items()
    }


def final_infos(
    episode: Episode, settled: EpisodeRewards, infos: Mapping[str, AgentInfo]
) -> dict[str, AgentInfo]:
    """The `info` of each agent at the end: fresh plain values, equal for equal episodes."""
    # `infos` are the latest ones; see `first_infos` for the keys.
    outcome = episode.finished()
    score, cut = settled.score, episode.truncated
    final: dict[str, AgentInfo] = {
        agent: {**info, **_outcome_info(settled.returns[agent], score, outcome, cut)}
        for agent, info in infos.items()
    }
    role_scores = episode.role_scores
    for (turn, reply), parts in zip(settled.calls, settled.parts, strict=True):
        info = final[turn.agent]
        info["role_scores"].append(role_scores.get(turn.call))
        info["parts"].append(parts.copy())
        info["strict"].append(reply.strict is not None)
        info["lenient"].append(reply.lenient is not None)
    return final
