"""Policies of tests, whose replies are functions of the request."""

from collections.abc import Callable, Sequence

from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.seeding import key_int


class Replies:
    """Answers with `reply(request)`, a text or a completion, and keeps its batches."""

    def __init__(
        self,
        reply: Callable[[Request], str | Completion] = lambda request: "",
        name: str = "replies",
        batching: Batching = "static",
    ) -> None:
        self.reply, self.name, self.batching = reply, name, batching
        self.batches: list[list[Request]] = []

    @property
    def requests(self) -> list[Request]:
        """All requests, in their order."""
        return [request for batch in self.batches for request in batch]

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append(list(requests))
        replies = [self.reply(request) for request in requests]
        return [Completion(reply) if isinstance(reply, str) else reply for reply in replies]

    async def close(self) -> None:
        """No-op."""


class Numbers(Replies):
    """Answers with a number from 0 to 99 that is a function of the request's key."""

    def __init__(self, number: Callable[[Request], str] | None = None) -> None:
        self.number = number or (lambda request: str(key_int(*request.key) % 100))
        super().__init__(self.complete, "numbers")

    def complete(self, request: Request) -> Completion:
        prompt = tuple(repr(request.messages).encode())
        return Completion(self.number(request), prompt, (7, 8), (-0.5, -0.1))
