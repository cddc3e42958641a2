"""Judges: policies that are never trained, whose replies are kept on disk by content."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple
from pathlib import Path

from flowzoo.agents.policy import Batching, Completion, Policy, Request, Sampling
from flowzoo.envs.records import Usage
from flowzoo.envs.script import JUDGE, Message
from flowzoo.envs.workflow import JudgeFunction
from flowzoo.errors import SaveError
from flowzoo.functions import call_noted
from flowzoo.seeding import key_digest

JUDGE_SAMPLING = Sampling(temperature=0.0, max_tokens=1024)
"""Sampling of a judge: greedy, with room to explain."""
_TABLE = (
    "CREATE TABLE IF NOT EXISTS counted_replies (key TEXT PRIMARY KEY, text BLOB NOT NULL, "
    "finish TEXT NOT NULL, shortened INTEGER NOT NULL, prompt INTEGER, output INTEGER) "
    "WITHOUT ROWID"
)


class ReplyCache:
    """Replies by key in a SQLite file, which several processes may use at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, keys: Sequence[str]) -> dict[str, Completion]:
        """Return the cached replies by key."""
        return self._exchange(keys, {})

    def add(self, replies: Mapping[str, Completion]) -> dict[str, Completion]:
        """Add replies and return the cached ones: the first that was added for each key."""
        return self._exchange(list(replies), replies)

    def _exchange(
        self, keys: Sequence[str], replies: Mapping[str, Completion]
    ) -> dict[str, Completion]:
        rows = [
            (k, encode(r.text), r.finish, r.shortened, r.prompt_tokens, r.output_tokens)
            for k, r in replies.items()
        ]
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as file, file:
                file.execute(_TABLE)
                file.executemany(
                    "INSERT OR IGNORE INTO counted_replies VALUES (?, ?, ?, ?, ?, ?)", rows
                )
                query = (
                    "SELECT text, finish, shortened, prompt, output FROM counted_replies "
                    "WHERE key = ?"
                )
                stored = {key: file.execute(query, (key,)).fetchone() for key in keys}
        except (sqlite3.Error, OSError) as error:
            raise SaveError(
                f"the judge's replies could not be read from or written to {self.path} ({error}): "
                "free space, fix the permissions, or move away a damaged file, and try again"
            ) from error
        return {
            key: Completion(
                row[0].decode("utf-8", "surrogatepass"),
                finish=row[1],
                shortened=row[2],
                usage=None if None in row[3:] else Usage(*row[3:]),
            )
            for key, row in stored.items()
            if row is not None
        }


def encode(text: str) -> bytes:
    """`text` as bytes, halves of surrogate pairs included, which SQLite's texts cannot hold."""
    return text.encode("utf-8", "surrogatepass")


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
        self._open, self._identity = open_policy, identity
        self._cache = None if cache is None else ReplyCache(cache)
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
        parts = [part for message in messages for part in (message["role"], message["content"])]
        # Calls of tools and their results have more fields; keys of plain chats stay as they are.
        parts += [
            json.dumps([number, message], sort_keys=True)
            for number, message in enumerate(messages)
            if len(message) > 2
        ]
        # A limit that is tighter than the judge's own may cut what others get whole.
        if max_tokens is not None and self.sampling and max_tokens >= self.sampling.max_tokens:
            max_tokens = None
        if (max_prompt, max_tokens) != (None, None):
            parts.append(repr((max_prompt, max_tokens)))
        return key_digest(JUDGE, *self._prefix, *parts).hex()

    def earlier_replies(
        self,
        chats: Sequence[Sequence[Message]],
        max_prompt: int | None = None,
        max_tokens: int | None = None,
    ) -> list[Completion | None]:
        """Cached replies to `chats` within these limits; None for a chat that is not cached."""
        keys = [self._key(chat, max_prompt, max_tokens) for chat in chats]
        replies = {} if self._cache is None else self._cache.read(keys)
        return [replies.get(key) for key in keys]

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order: equal ones once, and none that the cache has."""
        if self._cache is None:
            return await self.opened().generate(requests)
        keys = [self._key(item.messages, item.max_prompt, item.max_tokens) for item in requests]
        replies = self._cache.read(keys)
        missing = {
            key: request for key, request in zip(keys, requests, strict=True) if key not in replies
        }
        if missing:
            answers = await self.opened().generate(list(missing.values()))
            replies |= self._cache.add(dict(zip(missing, answers, strict=True)))
        return [replies[key] for key in keys]

    async def close(self) -> None:
        """Close the policy, if it was opened."""
        if self._policy is not None:
            await self._policy.close()
            self._policy = None


class FunctionJudge:
    """A function as a judge: `Workflow.judge`."""

    batching: Batching = "static"

    def __init__(self, function: JudgeFunction) -> None:
        self.name, self._function = JUDGE, function

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answer `requests`, in their order."""
        return [
            Completion(
                call_noted(self._function, "the judge", list(request.messages)), finish="scripted"
            )
            for request in requests
        ]

    async def close(self) -> None:
        """No-op."""
