"""A page that follows a run: served on the loopback interface, renewed when the run goes on."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from flowzoo.baselines.report.local import LocalPage, Resource, file_states
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.write import EPISODES, run_page

POLL_S = 2.0  # between looks at the run's files
LONGEST_WAIT_S = 60.0  # of one request for changes; the page asks again


class LivePage(LocalPage):
    """Server of one run's page; `/changes?STATE` answers when the run has left that state."""

    def __init__(self, run: Path, port: int = 0, episodes: int | None = None) -> None:
        self.run = run
        self.episodes = EPISODES if episodes is None else episodes
        super().__init__(port)

    def state(self) -> str:
        """Digest of the state of the files that the page is made of."""
        files = [self.run / "metrics.jsonl", self.run / "summary.json"]
        states = file_states([*files, *sorted((self.run / "transcripts").glob("*"))])
        return hashlib.sha256(repr(states).encode()).hexdigest()

    def page(self) -> str:
        """The page as the run is now."""
        state = self.state()  # before the files are read
        (run,) = read_runs([self.run])
        live = state if run.summary is None else None
        return run_page(run, run_facts(run), self.episodes, live=live)

    def answer(self, path: str) -> Resource | None:
        """The page, or the news that it has changed."""
        path, _, state = path.partition("?")
        if path == "/":
            return Resource("text/html; charset=utf-8", self.page())
        return Resource("text/event-stream", self._changes(state)) if path == "/changes" else None

    def _changes(self, state: str) -> str:
        end = time.monotonic() + LONGEST_WAIT_S
        while self.state() == state and time.monotonic() < end:
            time.sleep(POLL_S)
        return f"data: {'same' if self.state() == state else 'changed'}\n\n"
