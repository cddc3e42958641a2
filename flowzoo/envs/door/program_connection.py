"""Connections of clients, which record whether a reply was read, and their server."""

import socket
from collections.abc import Mapping
from typing import Any

from flowzoo.envs.door.app import DoorFront
from flowzoo.envs.door.run import Link, ProgramRun
from flowzoo.front.connection import BoundedConnection
from flowzoo.front.server import HOST, FrontServer, bind

_KEEP_ALIVE_S = 24 * 3600


def open_server(runs: Mapping[str, ProgramRun]) -> FrontServer:
    """The server of a door on the loopback interface; `runs` are by API key."""
    front, opened = DoorFront(runs), bind(HOST, 0)
    opened.listen()  # programs may connect before the thread serves
    return FrontServer(front, opened, keep_alive_s=_KEEP_ALIVE_S, connection=ProgramConnection)


class ProgramConnection(BoundedConnection):
    """A connection; the state of its requests has its `Link` as `link`."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.link = Link()
        self.app_state = {"link": self.link}
        self._is_last = False  # its client closes it after this response

    def on_headers_complete(self) -> None:
        """Keep the connection open after the response, also if the client wants no further one."""
        super().on_headers_complete()
        self._is_last, self.cycle.keep_alive = not self.cycle.keep_alive, True

    def on_response_complete(self) -> None:
        """Note that the response was sent."""
        super().on_response_complete()
        if not self.transport.is_closing():  # else nothing was sent
            self.link.sent()
            if self._is_last:  # only for sending, to see how the client closes its side
                self.transport.write_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note how the connection ended."""
        # A kernel resets a connection that is closed before all was read. If the client closed it
        # before the reply arrived, the end is read first, and the reset is the socket's error.
        end: socket.socket = self.transport.get_extra_info("socket")
        error = exc or end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        self.link.close(is_reset=bool(error))
        super().connection_lost(exc)
