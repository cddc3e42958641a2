"""A page that follows a run: served on the loopback interface, renewed when the run goes on."""

from __future__ import annotations

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.write import EPISODES, run_page

HOST = "127.0.0.1"
POLL_S = 2.0  # between looks at the run's files
LONGEST_WAIT_S = 60.0  # of one request for changes; the page asks again


class LivePage(ThreadingHTTPServer):
    """Server of one run's page; `/changes` answers when the page is out of date.

    Requests must name the loopback address as their host, so that no other site's page can read
    this one under a name that leads here.
    """

    daemon_threads = True

    def __init__(self, run: Path, port: int = 0, episodes: int | None = None) -> None:
        self.run = run
        self.episodes = EPISODES if episodes is None else episodes
        self.shown = self.state()
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """Names, sizes and times of the files that the page is made of."""
        files = [self.run / "metrics.jsonl", self.run / "summary.json"]
        files += sorted((self.run / "transcripts").glob("*"))
        stats = [(path.name, path.stat()) for path in files if path.is_file()]
        return tuple((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats)

    def page(self) -> str:
        """The page as the run is now."""
        self.shown = self.state()
        (run,) = read_runs([self.run])
        return run_page(run, run_facts(run), self.episodes, live=run.summary is None)


class _Handler(BaseHTTPRequestHandler):
    @property
    def _page(self) -> LivePage:
        assert isinstance(self.server, LivePage)
        return self.server

    def do_GET(self) -> None:
        """Answer with the page, or with the news that it has changed."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in (HOST, "localhost"):
            self.send_error(403, "this page is for the machine it runs on")
        elif self.path == "/":
            self._send("text/html; charset=utf-8", self._page.page())
        elif self.path == "/changes":
            self._wait()
        else:
            self.send_error(404)

    def _wait(self) -> None:
        server, end = self._page, time.monotonic() + LONGEST_WAIT_S
        while server.state() == server.shown and time.monotonic() < end:
            time.sleep(POLL_S)
        changed = server.state() != server.shown
        self._send("text/event-stream", f"data: {'changed' if changed else 'same'}\n\n")

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log no request."""
