"""The server of a served workflow: its address, its start and its end."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import uvicorn

from flowzoo.agents.serving.app import make_app
from flowzoo.agents.serving.service import TeamService
from flowzoo.envs.door.connection import server_config
from flowzoo.errors import UsageError

_LOOK_S = 0.05  # seconds between two looks at the end
_KEEP_ALIVE_S = 75


def bind(host: str, port: int, api_key: str) -> socket.socket:
    """A socket at an address, on which nothing listens yet.

    Raises:
        UsageError: no such address, it is taken, or it can be reached from elsewhere without a key.
    """
    try:
        kind = socket.SOCK_STREAM
        family, *_, address = socket.getaddrinfo(host, port, type=kind)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host} is no address of this machine: {error}") from None
    if not api_key and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"--host {host} can be reached from other machines: give --api-key KEY, which requests "
            "must then have, or listen on 127.0.0.1"
        )
    # Connections inherit it; without it the body of an answer waits for an acknowledgement.
    opened = socket.socket(family, kind, socket.IPPROTO_TCP)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        opened.bind(address)
    except OSError as error:
        opened.close()
        raise UsageError(
            f"cannot listen on port {port} of {host}: {error.strerror}. Choose another --port "
            "(0: any that is free)."
        ) from None
    return opened


class TeamServer(uvicorn.Server):
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
        config = server_config(make_app(service), keep_alive_s=_KEEP_ALIVE_S)
        config.timeout_graceful_shutdown = int(grace) + 2
        super().__init__(config)
        self._service, self._socket = service, opened
        self._grace, self._on_ready = grace, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_ready()

    async def run_until_stopped(self) -> None:
        """Serve.

        Raises:
            Exception: the engine failed.
        """
        engine = asyncio.create_task(self._service.engine.serve())
        end = asyncio.create_task(self._watch(engine))
        try:
            await self.serve(sockets=[self._socket])
        finally:
            end.cancel()
            engine.cancel()
            results = await asyncio.gather(engine, end, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

    def stop(self) -> None:
        """Begin the end; may be called from any thread."""
        self.should_exit = True

    async def _watch(self, engine: asyncio.Task[None]) -> None:
        while not (self.should_exit or engine.done()):
            await asyncio.sleep(_LOOK_S)
        self.should_exit = self._service.ending = True
        if not engine.done():
            await asyncio.wait([engine], timeout=self._grace)
        self._service.refuse_open()
