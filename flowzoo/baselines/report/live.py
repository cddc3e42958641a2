"""A page that follows a run: served on the loopback interface, renewed when the run goes on."""

import asyncio
import hashlib
import time
from pathlib import Path

from flowzoo.baselines.report.local import LocalPage, Resource, file_states, page_reply
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.report.write import EPISODES, run_page
from flowzoo.front.request import HttpReply, HttpRequest

POLL_S = 2.0  # between looks at the run's files
LONGEST_WAIT_S = 60.0  # of one request for changes; the page asks again
_LOOK_S = 0.5  # between looks at whether the server ends
MOST_WATCHING = 64  # requests that wait for changes; further ones are answered at once


class LivePage(LocalPage):
    """Server of one run's page; `/changes?STATE` answers when the run has left that state."""

    def __init__(self, run: Path, port: int = 0, episodes: int | None = None) -> None:
        self.run_folder = run
        self.episodes = EPISODES if episodes is None else episodes
        self._watching = 0
        self._seen = "", float("-inf")  # the latest state, and when it was looked at
        self._built = "", ""  # the latest page, after its state
        super().__init__(port, changes=self._changes)

    def gauges(self) -> dict[str, float]:
        """Requests that wait for changes."""
        return {"page_watchers": self._watching}

    def state(self) -> str:
        """Digest of the state of the files that the page is made of."""
        files = [self.run_folder / "metrics.jsonl", self.run_folder / "summary.json"]
        states = file_states([*files, *sorted((self.run_folder / "transcripts").glob("*"))])
        return hashlib.sha256(repr(states).encode()).hexdigest()

    def page(self) -> str:
        """The page as the run is now."""
        state = self.state()  # before the files are read
        if state != self._built[0]:
            (run,) = read_runs([self.run_folder])
            live = state if run.summary is None else None
            self._built = state, run_page(run, run_facts(run), self.episodes, live=live)
        return self._built[1]

    def answer(self, path: str) -> Resource | None:
        """The page."""
        return Resource("text/html; charset=utf-8", self.page()) if path == "/" else None

    async def _changes(self, request: HttpRequest) -> HttpReply:
        # The news that the run has left a state, or that it has not for long.
        end = time.monotonic() + LONGEST_WAIT_S
        departure = request.departure
        self._watching += 1
        try:
            while (is_same := await self._latest() == request.query) and time.monotonic() < end:
                if self._watching > MOST_WATCHING or departure.done() or self.ending:
                    break
                await asyncio.wait((departure,), timeout=min(POLL_S, _LOOK_S))
        finally:
            self._watching -= 1
        text = f"data: {'same' if is_same else 'changed'}\n\n"
        return page_reply(Resource("text/event-stream", text))

    async def _latest(self) -> str:
        # One look at the files is for all who wait.
        state, looked = self._seen
        if time.monotonic() - looked > POLL_S / 2:
            state = await asyncio.to_thread(self.state)
            self._seen = state, time.monotonic()
        return state
