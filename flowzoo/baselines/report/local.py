"""Serving a page on the loopback interface."""

from __future__ import annotations

from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

HOST = "127.0.0.1"


class Resource(NamedTuple):
    """Content of an address."""

    kind: str
    """Media type."""
    text: str


def file_states(paths: Iterable[Path]) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files among `paths`."""
    stats = [(str(path), path.stat()) for path in paths if path.is_file()]
    return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)


class LocalPage(ThreadingHTTPServer):
    """Server of one page on this machine.

    Requests must name the loopback address as their host, so that no other site's page can read
    this one under a name that leads here.
    """

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def answer(self, path: str) -> Resource | None:
        """Content at `path`; None: there is nothing."""
        raise NotImplementedError


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer with what is at the address."""
        assert isinstance(self.server, LocalPage)
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost"):
            self.send_error(403, "this page is for the machine it runs on")
            return
        answer = self.server.answer(self.path)
        if answer is None:
            self.send_error(404)
            return
        body = answer.text.encode()
        self.send_response(200)
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no request."""
