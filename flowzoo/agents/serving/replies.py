"""Answers of a served workflow in OpenAI's format: as one object, and as events."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from flowzoo.agents.policy import Completion
from flowzoo.agents.serving.parameters import ServedRequest
from flowzoo.agents.serving.questions import SpokenTurn, TeamAnswer
from flowzoo.envs.door.wire import DONE, event, until
from flowzoo.envs.text import encodable

NO_ANSWER = "The workflow ended without an answer: its replies could not be read as one."


def reply_head(request: ServedRequest, kind: str) -> dict[str, Any]:
    """The fields that all objects of a new reply share."""
    name, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    return {"id": name, "created": created, "model": request.model, "object": kind}


def usage(completions: Iterable[Completion]) -> dict[str, int] | None:
    """Tokens of all calls; None where a policy does not count them."""
    counts = [(done.prompt_tokens, done.output_tokens) for done in completions]
    prompts = [prompt for prompt, _ in counts if prompt is not None]
    outputs = [output for _, output in counts if output is not None]
    if len(prompts) < len(counts) or len(outputs) < len(counts):
        return None
    prompt, output = sum(prompts), sum(outputs)
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def completion(
    request: ServedRequest, answers: Sequence[TeamAnswer], by_team: bool
) -> dict[str, Any]:
    """A reply as one object."""
    choices = []
    for index, answer in enumerate(answers):
        text, finish = until(answer.text or "", request.stop, answer.finish)
        refusal = NO_ANSWER if answer.text is None else None
        message = {"role": "assistant", "content": text, "refusal": refusal}
        choice = {"index": index, "message": message, "logprobs": None, "finish_reason": finish}
        choices.append(choice | _extras(request, answer, by_team))
    used = usage(done for answer in answers for done in answer.completions)
    return {**reply_head(request, "chat.completion"), "choices": choices, "usage": used}


def _extras(request: ServedRequest, answer: TeamAnswer, by_team: bool) -> dict[str, Any]:
    # The field `flowzoo` of a choice.
    shortened = sum(done.shortened for done in answer.completions)
    if not (by_team or request.transcript or shortened):
        return {}
    facts: dict[str, Any] = {"calls": len(answer.completions), "shortened": shortened}
    if by_team:
        facts["unseen_messages"] = len(request.messages) - 1
    if request.transcript:
        facts["transcript"] = [_clean(turn) for turn in answer.transcript]
    return {"flowzoo": facts}


def _clean(turn: Mapping[str, Any]) -> dict[str, Any]:
    messages = [{**part, "content": encodable(part["content"])} for part in turn["messages"]]
    return {**turn, "messages": messages, "reply": encodable(turn["reply"])}


class ReplyStream:
    """A reply as server-sent events."""

    def __init__(self, request: ServedRequest, by_team: bool) -> None:
        self.request, self.by_team = request, by_team
        self._head = reply_head(request, "chat.completion.chunk")

    def start(self) -> Iterator[bytes]:
        """The first event of every choice."""
        for index in range(self.request.samples):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def turn(self, index: int, turn: SpokenTurn) -> bytes:
        """The turn of an agent, as the field in which reasoning models stream their thoughts."""
        text = f"[{turn.agent}] {encodable(turn.text).strip()}\n\n"
        return self._chunk(index, {"reasoning_content": text})

    def answer(self, index: int, answer: TeamAnswer) -> Iterator[bytes]:
        """The answer of a choice, and its end."""
        text, finish = until(answer.text or "", self.request.stop, answer.finish)
        yield self._chunk(
            index, {"content": text} if answer.text is not None else {"refusal": NO_ANSWER}
        )
        yield self._chunk(index, {}, finish, **_extras(self.request, answer, self.by_team))

    def end(self, completions: Iterable[Completion]) -> Iterator[bytes]:
        """The last events."""
        if self.request.stream_usage:
            yield event({**self._head, "choices": [], "usage": usage(completions)})
        yield DONE

    def _chunk(
        self, index: int, delta: dict[str, str], finish: str | None = None, **more: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
        return event({**self._head, "choices": [choice]})
