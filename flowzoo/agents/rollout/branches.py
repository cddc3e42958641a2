"""Shared parts of the tree samplers: candidates from one prompt, branches, their effects.

A branch is a fork (a replay of the log), so it shares no state with the episode it came from, and
the replay checks that it opened with the same prompts, byte for byte (`DivergedError` otherwise).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from flowzoo.agents.policy import Key, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.rollout.drivers import OpenTurn, make_request, open_turns
from flowzoo.agents.rollout.engine import EffectBatch, RequestBatch, Response
from flowzoo.envs import Episode
from flowzoo.errors import UsageError

Choice = tuple[int, ...]
"""A joint action: one candidate per open turn, in slot order."""


class Phase(NamedTuple):
    """The open turns of an episode, with the candidates sampled for each."""

    number: int
    turns: list[OpenTurn]
    answers: list[list[Response]]
    """Per turn, its candidates."""

    def chosen(self, choice: Choice) -> dict[int, Response]:
        """Call number -> the candidate that `choice` takes."""
        return {
            turn.call: answers[candidate]
            for turn, answers, candidate in zip(self.turns, self.answers, choice, strict=True)
        }


def check_one_prompt(turn: OpenTurn, answers: Sequence[Response]) -> None:
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
    """Sample `count` candidates for every open turn of `episode`, all from its one prompt.

    Args:
        policy_map: policies by role.
        episode: an episode that waits for replies.
        key: first parts of the requests' keys: seed, problem, sample.
        count: candidates per turn.
        suffix: distinguishes the keys of this phase from the same turn on other branches.
    """
    turns, number = open_turns(episode), episode.asks[0].phase
    problem = episode.problem.id
    requests: list[Request] = []
    for turn in turns:  # not a comprehension; see `drive`
        for candidate in range(count):
            name = (*key, turn.agent, turn.turn, *suffix, candidate)
            requests.append(make_request(policy_map, name, turn, problem))
    got = yield RequestBatch(requests)
    answers: list[list[Response]] = []
    for index, turn in enumerate(turns):
        candidates = got[index * count : (index + 1) * count]
        check_one_prompt(turn, candidates)
        answers.append(candidates)
    return Phase(number, turns, answers)


def fork_with_replies(
    episode: Episode, phase: Phase, choice: Choice, key: str | None = None
) -> Episode:
    """A fork of `episode` in which the open turns were answered as `choice` says."""
    return answered(episode.fork(key), phase, choice)


def answered(episode: Episode, phase: Phase, choice: Choice) -> Episode:
    """`episode`, after its open turns were answered as `choice` says."""
    for turn, answers, candidate in zip(phase.turns, phase.answers, choice, strict=True):
        episode.reply(turn.agent, answers[candidate].completion.text)
    return episode


def resolve_effects(episodes: Sequence[Episode]) -> Generator[EffectBatch, list[Any], None]:
    """Carry out effects of `episodes`, together, until each is done or waits for replies."""
    while True:
        busy = [episode for episode in episodes if episode.effects]
        if not busy:
            return
        results = yield EffectBatch([job for waiting in busy for job in waiting.pending_effects])
        start = 0
        for waiting in busy:
            count = len(waiting.effects)
            waiting.resolve(results[start : start + count])
            start += count


def engine_values(answer: Response) -> Mapping[str, Any]:
    """The fields of `Call` that differ between candidates and come from the engine."""
    done = answer.completion
    return {
        "output_ids": done.output_ids,
        "logps": done.logps,
        "finish": done.finish,
        "usage": done.usage,
    }
