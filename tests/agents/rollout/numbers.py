"""A policy for the tests of samplers."""

from collections.abc import Callable, Sequence

from flowzoo.agents import Completion, Request
from flowzoo.seeding import key_int


class Numbers:
    """Answers with a number from 0 to 99 that is a function of the request's key."""

    batching = "static"

    def __init__(self, name: str = "numbers", reply: Callable[[Request], str] | None = None):
        self.name = name
        self.batches: list[list[Request]] = []
        self.answer = reply or (lambda request: str(key_int(*request.key) % 100))

    @property
    def requests(self) -> list[Request]:
        return [request for batch in self.batches for request in batch]

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append(list(requests))
        return [
            Completion(self.answer(r), tuple(repr(r.messages).encode()), (7, 8), (-0.5, -0.1))
            for r in requests
        ]

    async def close(self) -> None:
        """No-op."""
