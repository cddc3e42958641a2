"""The server of the page of an evaluation, or of two that are compared."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from flowzoo.baselines.report.evaluation.data import evaluation_files
from flowzoo.baselines.report.evaluation.page import build_page
from flowzoo.baselines.report.local import LocalPage, Resource, file_states


class EvaluationServer(LocalPage):
    """Server of the page of an evaluation; it is built again when the evaluation has changed."""

    def __init__(
        self, folder: Path, against: Path | None, port: int = 0, episodes: int | None = None
    ) -> None:
        self.folders = [folder] if against is None else [folder, against]
        # Another site's page may load scripts from here, but cannot guess their address.
        self.scripts = secrets.token_hex(16)
        self._sources = (folder, against, self.scripts, episodes)
        self._state = self.state()
        self._page = build_page(*self._sources)
        super().__init__(port)

    def state(self) -> Sequence[tuple[str, int, int]]:
        """State of the files that the page is made of."""
        return file_states(path for folder in self.folders for path in evaluation_files(folder))

    def answer(self, path: str) -> Resource | None:
        """The page, or one of its scripts."""
        if path == "/":
            state = self.state()
            if state != self._state:
                self._page, self._state = build_page(*self._sources), state
            return Resource("text/html; charset=utf-8", self._page.html)
        script = re.fullmatch(rf"/{self.scripts}/([0-9]{{1,9}})\.js", path)
        if script is None or int(script[1]) >= len(self._page.scripts):
            return None
        return Resource("text/javascript; charset=utf-8", self._page.scripts[int(script[1])])
