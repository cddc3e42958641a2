"""Serving a page on the loopback interface."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from flowzoo.front.front import Front, Handler
from flowzoo.front.line import WaitingLine
from flowzoo.front.refusal import RefusalError
from flowzoo.front.request import HttpReply, HttpRequest
from flowzoo.front.server import HOST, FrontServer, bind

MOST_WAITING = 64
"""Most requests that wait while a page is built."""
_BUILD_S = 600.0
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


class Resource(NamedTuple):
    """Content of an address."""

    kind: str
    """Media type."""
    text: str


def file_states(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files among `paths`."""
    stats = [(str(path), path.stat()) for path in paths if path.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


class LocalPage(Front):
    """Server of one page on this machine."""

    most_connections = 256

    def __init__(self, port: int = 0, **routes: Handler) -> None:
        """Listen on a port; `routes` are further handlers of GET, by path."""
        more = {f"GET /{path}": handler for path, handler in routes.items()}
        super().__init__({"GET /": self._content, "GET /*": self._content, **more})
        self._line = WaitingLine(1, MOST_WAITING)
        self.server = FrontServer(self, bind(HOST, port), grace_s=2)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"{self.server.url}/"

    def answer(self, path: str) -> Resource | None:
        """Content at `path`, a query included, of one request at a time; None: there is nothing."""
        raise NotImplementedError

    def run(self) -> None:
        """Serve until a signal, or `server.stop`."""
        asyncio.run(self.server.listen())

    async def _content(self, request: HttpRequest) -> HttpReply:
        async with self._line.slot(request.departure, _BUILD_S):
            target = f"{request.path}?{request.query}" if request.query else request.path
            content = await asyncio.to_thread(self.answer, target)
        if content is None:
            raise RefusalError(404, "unknown_url", "There is nothing at this address.")
        return page_reply(content)


def page_reply(content: Resource) -> HttpReply:
    """The reply with a content."""
    return HttpReply(200, content.text.encode(), content.kind, _HEADERS)
