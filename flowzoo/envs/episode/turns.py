"""An open turn of an episode, and the digest of its prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from flowzoo.envs.script import Ask, Message, Reply


class Turn:
    """One ask that was opened: who, where in the episode, what it sees and, later, its reply."""

    __slots__ = (
        "agent", "call", "lenient", "logged", "messages", "parse", "phase", "reply", "said", "slot",
        "turn",
    )  # fmt: skip

    def __init__(self, ask: Ask, call: int, slot: int, turn: int, phase: int, logged: int) -> None:
        self.agent, seen, self.parse, self.lenient = ask
        self.call = call
        self.slot = slot
        self.turn = turn
        self.phase = phase
        self.logged = logged
        self.reply: Reply | None = None
        """What the script was given: without thoughts, unless the workflow shows them."""
        self.said = ""
        """The whole reply, thoughts included, once there is one."""
        self.messages: list[Message] = (
            [{"role": "user", "content": seen}]
            if isinstance(seen, str)
            else [message.copy() for message in seen]
        )

    def observe(self) -> list[Message]:
        """A fresh copy of the messages, safe to change."""
        messages = self.messages
        if len(messages) == 1:  # mostly: without a comprehension's frame
            return [messages[0].copy()]
        return [message.copy() for message in messages]


def prompt_digest(messages: Sequence[Message]) -> bytes:
    """16 bytes that identify a prompt, on every machine and in every process."""
    hasher = hashlib.blake2b(digest_size=16)
    for message in messages:
        for part in (message["role"], message["content"]):
            raw = part.encode("utf-8", "surrogatepass")
            hasher.update(len(raw).to_bytes(8, "little"))
            hasher.update(raw)
    return hasher.digest()
