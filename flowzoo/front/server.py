"""The server of a front: its address, its start and its end."""

import ipaddress
import resource
import socket
from collections.abc import Callable

import uvicorn

from flowzoo.errors import UsageError
from flowzoo.front.connection import BoundedConnection
from flowzoo.front.front import Front

HOST = "127.0.0.1"
_BACKLOG = 4096
_FILES = 2**16


def bind(host: str, port: int, has_key: bool = False) -> socket.socket:
    """A socket at an address, on which nothing listens yet.

    Raises:
        UsageError: no such address, it is taken, or it can be reached from elsewhere without a key.
    """
    try:
        kind = socket.SOCK_STREAM
        family, *_, address = socket.getaddrinfo(host, port, type=kind)[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host} is no address of this machine: {error}") from None
    if not has_key and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise UsageError(
            f"--host {host} can be reached from other machines: set FLOWZOO_API_KEY or give "
            "--api-key @FILE, a key that requests must then have, or listen on 127.0.0.1"
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


class FrontServer(uvicorn.Server):
    """Serves a front until a signal, or `stop`."""

    def __init__(
        self,
        front: Front,
        opened: socket.socket,
        *,
        keep_alive_s: int = 75,
        grace_s: int = 5,
        connection: type[BoundedConnection] = BoundedConnection,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a server.

        Args:
            front: what answers the requests.
            opened: socket to listen on; see `bind`.
            keep_alive_s: seconds that a connection may be without a request.
            grace_s: most seconds of open requests after the end was asked for.
            connection: class of the connections.
            on_ready: called once it listens.
        """
        config = uvicorn.Config(
            front,
            interface="asgi3",
            http=connection,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=keep_alive_s,
            timeout_graceful_shutdown=grace_s,
            backlog=_BACKLOG,
        )
        super().__init__(config)
        self.front, self.socket, self._on_ready = front, opened, on_ready
        front.connections = self.server_state.connections
        front.most_connections = min(front.most_connections, _allow_files() // 2)

    @property
    def url(self) -> str:
        """Address of the server."""
        host, port = self.socket.getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        self._on_ready()

    async def listen(self) -> None:
        """Serve until the end."""
        await self.serve(sockets=[self.socket])

    def stop(self) -> None:
        """Begin the end; may be called from any thread."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse new requests, and let open ones finish."""
        self.front.ending = True
        await super().shutdown(sockets)


def _allow_files() -> int:
    # Every connection needs a file, a function's request two: the usual limit is 1,024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        soft = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _FILES if soft == resource.RLIM_INFINITY else soft
