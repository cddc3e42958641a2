"""The server of a served workflow: its start and its end."""

import asyncio
import socket
from collections.abc import Callable

from flowzoo.agents.serving.app import TeamFront
from flowzoo.agents.serving.service import TeamService, ended
from flowzoo.front.server import FrontServer

_LOOK_S = 0.05  # seconds between two looks at the end


class TeamServer(FrontServer):
    """Serves a workflow until a signal, or `stop`; then it finishes open requests."""

    def __init__(
        self,
        service: TeamService,
        opened: socket.socket,
        grace: float,
        on_ready: Callable[[], None],
    ) -> None:
        """Make a server.

        Args:
            service: the workflow with its policies.
            opened: socket to listen on; see `bind`.
            grace: seconds for open requests after the end was asked for.
            on_ready: called once it listens.
        """
        front = TeamFront(service)
        super().__init__(front, opened, grace_s=int(grace) + 2, on_ready=on_ready)
        self._service, self._grace = service, grace

    async def run_until_stopped(self) -> None:
        """Serve.

        Raises:
            Exception: the engine failed.
        """
        engine = asyncio.create_task(self._service.engine.serve())
        end = asyncio.create_task(self._watch(engine))
        try:
            await self.listen()
        finally:
            end.cancel()
            engine.cancel()
            results = await asyncio.gather(engine, end, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    async def _watch(self, engine: asyncio.Task[None]) -> None:
        while not (self.should_exit or engine.done()):
            await asyncio.sleep(_LOOK_S)
        self.should_exit = self._service.ending = True
        self._service.line.close(ended())
        if not engine.done():
            await asyncio.wait([engine], timeout=self._grace)
        self._service.refuse_open()
