"""Worked examples: exchanges of the workflow's experts, shown to a role before its chat."""

from dataclasses import replace
from typing import NamedTuple

from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.episode.recording import answered_turns
from flowzoo.envs.readers.judgments import scripted_judge
from flowzoo.envs.script import Message
from flowzoo.envs.settings import check_whole
from flowzoo.envs.wording import AGAIN
from flowzoo.envs.workflow import Workflow
from flowzoo.errors import UsageError
from flowzoo.seeding import key_rng

EPISODES = 30  # most episodes that are played to find the examples of a role
SKILL = 0.5  # probability that the other roles are right in the first episode
LATER = 10  # episodes within which a role must have a second turn


class WorkedExample(NamedTuple):
    """A role's exchange on one problem."""

    messages: tuple[Message, ...]  # the chat, with the reply at its end
    value: object  # the parsed reply
    turn: int  # index of the role's turn, from 0


def with_examples(workflow: Workflow, count: int) -> Workflow:
    """Return the workflow with `count` worked examples before the chats of every role.

    A role that is asked again first sees an example of its second turn.

    Raises:
        UsageError: the task has no problems for examples, or the expert of a role gave fewer
            readable replies.
    """
    # Small language models copy the form of an example when they do not follow an instruction. The
    # role is right in its examples, and the others in half of them: evaluators see right and wrong
    # answers, aggregators see both among the candidates. A second turn corrects a wrong first one,
    # which would be a bad example before a first turn.
    check_whole("examples", count, 0)
    if not count:
        return workflow
    plain = replace(workflow, system=())
    chats: dict[str, tuple[Message, ...]] = {}
    for role in workflow.role_counts():
        first, second = list[WorkedExample](), list[WorkedExample]()
        for number in range(EPISODES):
            if (example := _play(plain, role, number)) is not None:
                # A verdict does not depend on an earlier one.
                again = example.turn and not isinstance(example.value, bool)
                (second if again else first).append(example)
            # Examples should differ: a constant choice would be copied.
            varied = len({repr(example.value) for example in first}) >= count
            if varied and (second or number >= LATER):
                break
        chosen = _vary(first, count)
        if len(chosen) < count:
            raise UsageError(
                f"examples={count}: only {len(chosen)} different readable examples of {role} were "
                f"found in {EPISODES} episodes of the workflow's experts: give "
                f"examples={len(chosen)}"
            )
        chats[role] = tuple(message for example in chosen for message in example.messages)
        if second:
            chats[f"{role}{AGAIN}"] = second[0].messages
    return replace(workflow, examples=chats)


def _play(workflow: Workflow, role: str, number: int) -> WorkedExample | None:
    # The first exchange of `role` in even episodes, the second in odd ones.
    problem = workflow.task.example(number // 2)
    episode = Episode(workflow, problem)
    rng = key_rng("example", workflow.name, role, number)
    turn_number = number % 2
    while not episode.done:
        if episode.effects:
            judge = workflow.judge or scripted_judge
            episode.resolve(resolve(workflow.task, episode.pending_effects, judge))
            continue
        for turn in episode.waiting:
            turn_role = workflow.agents[turn.agent][0]
            if turn_role == role and turn.turn == turn_number:
                reply = workflow.example(role, turn.observe(), problem, rng)
            else:
                # The probability rises with the episode, for roles that depend on others.
                right = rng.random() < SKILL + (1 - SKILL) * number / EPISODES
                reply = workflow.expert(turn_role, turn.observe(), problem, rng, right)
            episode.reply(turn.agent, reply)
    for turn, reply in answered_turns(episode):
        if workflow.agents[turn.agent][0] == role and turn.turn == turn_number:
            fits = reply.strict is not None and episode.role_scores.get(turn.call, 1.0) > 0
            chat = turn.observe()
            # A second attempt that repeats the first shows how to ignore the critique.
            repeats = turn_number and any(turn.said in message["content"] for message in chat)
            if not fits or repeats:
                return None
            messages = (*chat, {"role": "assistant", "content": turn.said})
            return WorkedExample(messages, reply.strict, turn_number)
    return None


def _vary(examples: list[WorkedExample], count: int) -> list[WorkedExample]:
    # Examples with values that differ come first.
    chosen: list[WorkedExample] = []
    for fresh in (True, False):
        for example in examples:
            prompt = example.messages[:-1]
            if len(chosen) == count or any(prompt == other.messages[:-1] for other in chosen):
                continue
            if not (fresh and any(example.value == other.value for other in chosen)):
                chosen.append(example)
    return chosen
