"""The page of an evaluation, or of two that are compared: written, or served."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from flowzoo.baselines.report.evaluation.data import evaluation_files, read_evaluations
from flowzoo.baselines.report.evaluation.facts import comparison_facts, evaluation_facts
from flowzoo.baselines.report.evaluation.files import pack_files
from flowzoo.baselines.report.html import render, stamp
from flowzoo.baselines.report.local import LocalPage, Resource, file_states
from flowzoo.errors import UsageError
from flowzoo.files import replace_text, writing


class EvaluationPage(NamedTuple):
    """A page and the scripts with its transcripts, which it loads from a folder beside it."""

    html: str
    scripts: list[str]


def build_page(
    folder: Path, against: Path | None, beside: str, episodes: int | None = None
) -> EvaluationPage:
    """The page of the evaluation in `folder`, or of its comparison with `against`.

    Args:
        folder: directory of an evaluation.
        against: directory of another on the same problems, or None.
        beside: name of the folder of scripts, relative to the page.
        episodes: most episodes (or problems of a comparison) in its browser; None: all.

    Raises:
        UsageError: an evaluation without episodes, or two that cannot be compared.
    """
    sides = read_evaluations([folder] if against is None else [folder, against])
    if against is None:
        title = sides[0].name
        facts = stamp(title, evaluation=evaluation_facts(sides[0]))
    else:
        title = f"{sides[0].name} against {sides[1].name}"
        facts = stamp(title, comparison=comparison_facts(*sides))
    index, scripts = pack_files(sides, episodes)
    html = render(title, facts, {**index, "folder": quote(beside)}, loads=True)
    return EvaluationPage(html, scripts)


def write_evaluation(
    folder: Path, out: Path, *, against: Path | None = None, episodes: int | None = None
) -> list[Path]:
    """Write the page `out`, and its transcripts into a folder beside it; return their paths."""
    beside = out.with_name(f"{out.stem}-episodes")
    if beside.exists() and not beside.is_dir():
        raise UsageError(
            f"{beside} exists and is a file, and the transcripts of the page go there: choose "
            "another --out"
        )
    page = build_page(folder, against, beside.name, episodes)
    out.parent.mkdir(parents=True, exist_ok=True)
    with writing(beside):
        if page.scripts:
            beside.mkdir(exist_ok=True)
        for number, script in enumerate(page.scripts):
            (beside / f"{number}.js").write_text(script, encoding="utf-8")
        for path in beside.glob("*.js"):  # of an earlier, longer page
            if re.fullmatch("[0-9]+", path.stem) and int(path.stem) >= len(page.scripts):
                path.unlink()
    replace_text(out, page.html)  # last: it goes with the scripts that are there now
    return [out, beside] if page.scripts else [out]


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
