"""A page that follows a run: served on the loopback interface, renewed when the run goes on."""

from __future__ import annotations

import time
from pathlib import Path

from flowzoo.baselines.report.local import LocalPage, Resource, file_states
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.write import EPISODES, run_page

POLL_S = 2.0  # between looks at the run's files
LONGEST_WAIT_S = 60.0  # of one request for changes; the page asks again


class LivePage(LocalPage):
    """Server of one run's page; `/changes` answers when the page is out of date."""

    def __init__(self, run: Path, port: int = 0, episodes: int | None = None) -> None:
        self.run = run
        self.episodes = EPISODES if episodes is None else episodes
        self.shown = self.state()
        super().__init__(port)

    def state(self) -> tuple[tuple[str, int, int], ...]:
        """State of the files that the page is made of."""
        files = [self.run / "metrics.jsonl", self.run / "summary.json"]
        return file_states([*files, *sorted((self.run / "transcripts").glob("*"))])

    def page(self) -> str:
        """The page as the run is now."""
        self.shown = self.state()
        (run,) = read_runs([self.run])
        return run_page(run, run_facts(run), self.episodes, live=run.summary is None)

    def answer(self, path: str) -> Resource | None:
        """The page, or the news that it has changed."""
        if path == "/":
            return Resource("text/html; charset=utf-8", self.page())
        return Resource("text/event-stream", self._changes()) if path == "/changes" else None

    def _changes(self) -> str:
        end = time.monotonic() + LONGEST_WAIT_S
        while self.state() == self.shown and time.monotonic() < end:
            time.sleep(POLL_S)
        return f"data: {'same' if self.state() == self.shown else 'changed'}\n\n"
