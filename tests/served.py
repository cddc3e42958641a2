"""A served workflow, or page, in this process, for tests."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from processes import wait_for

from flowzoo.agents.policy import Batching, Completion, Request
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.serving.app import TeamServer
from flowzoo.agents.serving.service import TeamService
from flowzoo.baselines.report.local import LocalPage
from flowzoo.envs import Workflow
from flowzoo.front.server import bind

AnyPage = TypeVar("AnyPage", bound=LocalPage)


class Served(NamedTuple):
    """A server that listens."""

    url: str
    service: TeamService
    server: TeamServer
    thread: threading.Thread


@contextmanager
def serving(
    workflow: Workflow, policy_map: PolicyMap, grace: float = 2.0, **settings: Any
) -> Iterator[Served]:
    """Serve until the end of the block."""
    service = TeamService(workflow, policy_map, **settings)
    opened, ready = bind("127.0.0.1", 0, bool(settings.get("api_key"))), threading.Event()
    server = TeamServer(service, opened, grace, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.run_until_stopped()))
    thread.start()
    try:
        assert ready.wait(20)
        yield Served(f"http://127.0.0.1:{opened.getsockname()[1]}/v1", service, server, thread)
    finally:
        server.stop()
        thread.join(30)
        opened.close()
    assert not thread.is_alive()
    assert not service.open
    assert not service.engine.futures


@contextmanager
def page_served(page: AnyPage) -> Iterator[AnyPage]:
    """Serve a page until the end of the block."""
    thread = threading.Thread(target=page.run)
    thread.start()
    try:
        wait_for(lambda: page.server.started)
        yield page
    finally:
        page.server.stop()
        thread.join(30)
    assert not thread.is_alive()


class Gate:
    """A policy that answers `\\boxed{7}` once its gate is open, or raises."""

    def __init__(self, name: str = "gate", batching: Batching = "stream", error: Any = None):
        self.name, self.batching, self.error = name, batching, error
        self.open = threading.Event()
        self.asked = 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Wait, and answer."""
        self.asked += len(requests)
        if self.error is not None:
            raise self.error
        while not self.open.is_set():
            await asyncio.sleep(0.005)
        return [Completion("\\boxed{7}", (1, 2), (3,), (0.0,)) for _ in requests]

    async def close(self) -> None:
        """No-op."""
