"""Shared parts of the tree samplers: candidates from one prompt, branches, their effects.

A branch is a fork (a replay of the log); the replay checks that it opened with the same prompts,
byte for byte (`DivergedError` otherwise).
"""

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from flowzoo.agents.policy import Key, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.drivers import carry_out, make_request, reply_text
from flowzoo.agents.rollout.engine import EffectBatch, RequestBatch, Response
from flowzoo.envs import Episode, Workflow
from flowzoo.envs.episode.recording import abstains, reward_parts
from flowzoo.envs.episode.turn import Turn
from flowzoo.errors import UsageError

Choice = tuple[int, ...]
"""A joint action: one candidate per open turn, in slot order."""


class Phase(NamedTuple):
    """The open turns of an episode, with the candidates sampled for each."""

    turns: Sequence[Turn]
    answers: list[list[Response]]
    """Per turn, its candidates."""

    def chosen(self, choice: Choice) -> dict[int, Response]:
        """Call number -> the candidate that `choice` takes."""
        return {
            turn.call: answers[candidate]
            for turn, answers, candidate in zip(self.turns, self.answers, choice, strict=True)
        }


def check_replayable(workflow: Workflow | None) -> None:
    """Raise `UsageError` if episodes of the workflow cannot be continued from copies."""
    if workflow is not None and not workflow.replayable:
        raise UsageError(
            f"tree sampling continues copies of an episode, and {workflow.name} is declared as not "
            "repeatable (repeatable=false): take an algorithm that samples whole episodes"
        )


def check_one_prompt(turn: Turn, answers: Sequence[Response]) -> None:
    """Raise `UsageError` unless all candidates of a turn were sampled from the same tokens."""
    first = answers[0]
    ids = list(first.completion.prompt_ids)
    for answer in answers[1:]:
        same = list(answer.completion.prompt_ids) == ids
        if not same or answer.policy != first.policy:
            raise UsageError(
                f"policy {answer.policy!r} turned one prompt of {turn.agent} into different "
                "tokens: candidates can be compared only if they answer the same prompt"
            )


def sample_phase(
    policy_map: PolicyMap, episode: Episode, key: Key, count: int, suffix: Key = ()
) -> Generator[RequestBatch, list[Response], Phase]:
    """Sample `count` candidates for every open turn of `episode`, all from its one prompt."""
    turns = episode.waiting
    requests: list[Request] = []
    for turn in turns:  # not a comprehension; see `drive`
        for candidate in range(count):
            name = (*key, turn.agent, turn.turn, *suffix, candidate)
            requests.append(make_request(policy_map, name, episode, turn))
    got = yield RequestBatch(requests)
    answers = [got[start : start + count] for start in range(0, len(got), count)]
    for turn, candidates in zip(turns, answers, strict=True):
        check_one_prompt(turn, candidates)
    return Phase(turns, answers)


def fork_with_replies(
    episode: Episode, phase: Phase, choice: Choice, key: str | None = None
) -> Episode:
    """A fork of `episode` in which the open turns were answered as `choice` says."""
    return answer_turns(episode.fork(key), phase, choice)


def answer_turns(episode: Episode, phase: Phase, choice: Choice) -> Episode:
    """`episode`, after its open turns were answered as `choice` says."""
    for turn, answers, candidate in zip(phase.turns, phase.answers, choice, strict=True):
        text = reply_text(episode.workflow, answers[candidate].completion)
        episode.reply(turn.agent, text)
    return episode


def resolve_effects(
    policy_map: PolicyMap, episodes: Sequence[Episode]
) -> Generator[RequestBatch | EffectBatch, list[Any], None]:
    """Carry out effects of `episodes`, together, until each is done or waits for replies."""
    while True:
        busy = [episode for episode in episodes if episode.effects]
        if not busy:
            return
        jobs = [job for waiting in busy for job in waiting.pending_effects]
        results = yield from carry_out(policy_map, jobs)
        start = 0
        for waiting in busy:
            count = len(waiting.effects)
            waiting.resolve(results[start : start + count])
            start += count


def known_parts(workflow: Workflow, branch: Episode, call: int) -> dict[str, float]:
    """The reward parts of `call` that a branch knows at once: `team` and `local` if it does."""
    team = branch.finished().score if branch.done else branch.interim_score
    reply = branch.turns[call].reply
    readable = reply is not None and reply.strict is not None
    role_score, form = branch.role_scores.get(call), branch.forms.get(call)
    parts = reward_parts(workflow, team or 0.0, readable, role_score, form)
    if team is None:
        del parts["team"]
    return parts


def immediate_values(workflow: Workflow, turn: Turn, branches: Sequence[Episode]) -> list[float]:
    """Values of the candidates of one turn, from the parts that their branches know at once."""
    parts = [known_parts(workflow, branch, turn.call) for branch in branches]
    # A standing from before the reply is the same for every candidate and says nothing of it.
    fresh = any(branch.done or branch.interim_phase > turn.phase for branch in branches)
    weights = {"format": 1.0}
    if all("local" in part for part in parts):
        weights["local"] = 1.0
    if workflow.credit != "local" and fresh and all("team" in part for part in parts):
        weights["team"] = workflow.alpha
    if weights.keys() == {"format"}:
        role, _ = workflow.agents[turn.agent]
        raise UsageError(
            f"candidates of role {role!r} in {workflow.name} cannot be valued at once: neither "
            "their role score nor a team reward is known before others have answered. "
            'Take TreeSettings(value="rollout"), which plays every candidate to its end.'
        )
    return [sum(weights.get(name, 0.0) * x for name, x in part.items()) for part in parts]


def held_down(
    values: Sequence[float], shares: Sequence[float], abstained: Sequence[bool]
) -> list[float]:
    """Values of one decision's candidates, with no candidate paid for abstaining."""
    # `shares` are the parts of `values` that come from the team's outcome. A candidate that
    # abstained gets at most the lowest share of the readable ones.
    read = [share for share, silent in zip(shares, abstained, strict=True) if not silent]
    lowest = min(read, default=math.inf)
    rows = zip(values, shares, abstained, strict=True)
    return [value - max(0.0, share - lowest) if silent else value for value, share, silent in rows]


def call_fields(workflow: Workflow, branch: Episode, call: int, value: float) -> dict[str, object]:
    """The fields of the `Call` of a candidate that was not executed, from its branch."""
    turn = branch.turns[call]
    readable = turn.reply is not None and turn.reply.strict is not None
    parts = known_parts(workflow, branch, call)
    return {
        "reply": turn.said,
        "strict": readable,
        "lenient": turn.reply is not None and turn.reply.lenient is not None,
        "role_score": branch.role_scores.get(call),
        "parts": parts,
        "reward": value,
        "immediate": parts.get("local", 0.0) + parts.get("format", 0.0),
        "abstained": abstains(workflow, readable),
    }
