"""Judges: policies that are never trained, whose replies are kept on disk by content."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from pathlib import Path

from flowzoo.agents.answers import AnswerCache
from flowzoo.agents.policy import Batching, Completion, Policy, Request, Sampling
from flowzoo.envs.records import FinishReason, Usage
from flowzoo.envs.script import JUDGE, Message
from flowzoo.envs.workflow import JudgeFunction
from flowzoo.functions import call_noted
from flowzoo.waits import function_call

JUDGE_SAMPLING = Sampling(temperature=0.0, max_tokens=1024)
"""Sampling of a judge: greedy, with room to explain."""


class JudgePolicy:
    """A policy as a judge: opened at the first request, asked once about the same content."""

    def __init__(
        self,
        name: str,
        open_policy: Callable[[], Policy],
        *,
        identity: Callable[[], str] | None = None,
        cache: Path | None = None,
        sampling: Sampling | None = None,
        batching: Batching = "static",
        model: str = "",
    ) -> None:
        """Describe the judge; nothing is loaded yet.

        Args:
            name: name of the policy in policy maps and records.
            open_policy: makes the policy.
            identity: text of model and engine in the keys of the cache.
            cache: SQLite file of replies; None, as with a script that knows the truth: no cache.
            sampling: the policy's, for keys and records.
            batching: the policy's.
            model: name of the model in a file of prices; by default the policy's name.
        """
        self.name, self.batching, self.sampling = name, batching, sampling
        self.model = model or name
        self._open, self._identity, self._cache = open_policy, identity, cache
        self._policy: Policy | None = None
        self._prefix: tuple[str, ...] = ()

    def opened(self) -> Policy:
        """The policy, loaded if it was not yet."""
        if self._policy is None:
            self._policy = self._open()
        return self._policy

    def _key(
        self, messages: Sequence[Message], max_prompt: int | None, max_tokens: int | None
    ) -> str:
        if not self._prefix:
            values = astuple(self.sampling) if self.sampling else ()
            self._prefix = (self._identity() if self._identity else self.name, repr(values))
        # A limit that is tighter than the judge's own may cut what others get whole.
        if max_tokens is not None and self.sampling and max_tokens >= self.sampling.max_tokens:
            max_tokens = None
        return json.dumps([*self._prefix, list(messages), max_prompt, max_tokens], sort_keys=True)

    def _exchange(
        self, keys: Sequence[str], new: Mapping[str, Completion]
    ) -> dict[str, Completion]:
        # Adds replies to the cache, in which the first one stands; returns the kept ones.
        if self._cache is None:
            return {}
        with closing(AnswerCache(self._cache)) as cache:
            for key, done in new.items():
                counts = done.prompt_tokens, done.output_tokens
                cache.put(key, [done.text, done.finish, done.shortened, *counts])
            rows = {key: cache.get(key) for key in keys}
        return {key: _kept_reply(*row) for key, row in rows.items() if row is not None}

    def earlier_replies(
        self,
        chats: Sequence[Sequence[Message]],
        max_prompt: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Completion | None]:
        """Cached replies to `chats` within these limits; None for a chat that is not cached."""
        keys = [self._key(chat, max_prompt, max_tokens) for chat in chats]
        replies = self._exchange(keys, {})
        return [replies.get(key) for key in keys]

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order: equal ones once, and none that the cache has."""
        if self._cache is None:
            return await self.opened().generate(requests)
        keys = [self._key(item.messages, item.max_prompt, item.max_tokens) for item in requests]
        replies = self._exchange(keys, {})
        missing = {
            key: request for key, request in zip(keys, requests, strict=True) if key not in replies
        }
        if missing:
            answers = await self.opened().generate(list(missing.values()))
            new = dict(zip(missing, answers, strict=True))
            replies |= self._exchange(list(new), new)
        return [replies[key] for key in keys]

    async def close(self) -> None:
        """Close the policy, if it was opened."""
        if self._policy is not None:
            await self._policy.close()
            self._policy = None


def _kept_reply(
    text: str, finish: FinishReason, shortened: int, prompt: int | None, output: int | None
) -> Completion:
    usage = None if prompt is None or output is None else Usage(prompt, output)
    return Completion(text, finish=finish, shortened=shortened, usage=usage)


class FunctionJudge:
    """A function as a judge: `Workflow.judge`."""

    batching: Batching = "static"
    is_function = True

    def __init__(self, function: JudgeFunction) -> None:
        self.name, self._function = JUDGE, function

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order."""
        return [Completion(self._ask(request), finish="scripted") for request in requests]

    def _ask(self, request: Request) -> str:
        with function_call("the judge"):
            return call_noted(self._function, "the judge", list(request.messages))

    async def close(self) -> None:
        """No-op."""
