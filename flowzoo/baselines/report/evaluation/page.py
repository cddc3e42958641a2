"""The page of an evaluation, or of two that are compared: written, or served."""

import hashlib
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from flowzoo.agents.evaluation.summary import attempts_of
from flowzoo.baselines.report.evaluation.data import (
    EvaluationData,
    evaluation_files,
    read_evaluations,
    sample_of,
)
from flowzoo.baselines.report.evaluation.facts import comparison_facts, evaluation_facts, level_of
from flowzoo.baselines.report.html import as_json, render, stamp
from flowzoo.baselines.report.local import LocalPage, Resource, file_states
from flowzoo.baselines.report.transcripts import Texts, pack_episode
from flowzoo.baselines.run.directory import plain
from flowzoo.envs import Call, EpisodeRecord
from flowzoo.errors import UsageError
from flowzoo.files import replace_text, writing

# The page holds the index; a transcript is in one of many scripts, which the page loads when it is
# needed (a page on disk may load scripts, but read no other file). Layout of the index:
#
# texts     all different texts
# roles     all roles
# sides     names of the evaluations: one, or two that are compared
# items     [problem, text, gold, level, file, first, sides]
# sides     for each evaluation its episodes of the item: [sample, score, answer, truncated, flags]
# flags     for each role: 1 it replied, 2 not read strictly, 4 cut off, 8 own answer wrong
#
# An item is an episode, or a problem where two evaluations are compared. `first` is the index of
# its first episode in `file`, whose content is laid out as in transcripts.py. Problem, text, gold,
# level and answer are indices into `texts`, shortened to a line.
LINE = 160  # characters of a text in the index
FILE_EPISODES, FILE_CHARACTERS = 64, 1_000_000
"""Episodes, and characters of different texts, that end a file."""

Item = Sequence[Sequence[EpisodeRecord]]
"""Episodes of a row of the list, for each side."""


def pack_files(
    sides: Sequence[EvaluationData], most: int | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The index of a page of one evaluation or two, and the scripts that hold its transcripts.

    `most` is the number of episodes of one evaluation, or of problems of two, in their order.
    """
    roles = list(dict.fromkeys(role for side in sides for role in side.roles))
    if len(sides) == 1:
        items: list[Item] = [[[record]] for record in sides[0].records]
    else:
        groups = [attempts_of(side.records) for side in sides]
        names = dict.fromkeys(name for group in groups for name in group)
        items = [[group.get(name, []) for group in groups] for name in names]
    lines = Texts()
    rows: list[list[Any]] = []
    packs: list[str] = []
    for group in _group(items[:most]):
        texts, episodes = Texts(), list[Any]()
        for item in group:
            records = [record for side in item for record in side]
            first = records[0]
            parts = (first.problem, first.text, first.gold, level_of(first))
            line = [lines.add(one_line(part)) for part in parts]
            rows.append([*line, len(packs), len(episodes), _sides(item, roles, lines)])
            for record in records:
                episodes.append(pack_episode(plain(record), "sample", sample_of(record), texts))
        packs.append(as_json({"texts": texts.all, "episodes": episodes}))
    stamp = hashlib.sha256("".join(packs).encode()).hexdigest()[:16]
    index = {
        "texts": lines.all, "roles": roles, "sides": [side.name for side in sides], "items": rows,
        "files": len(packs), "stamp": stamp,
        "total": sum(len(side.records) for side in sides),
    }  # fmt: skip
    scripts = [f'flowzooEpisodes("{stamp}",{n},{pack});\n' for n, pack in enumerate(packs)]
    return index, scripts


def _group(items: Sequence[Item]) -> Iterator[list[Item]]:
    """Items in runs that fill a file each."""
    group: list[Item] = []
    episodes = characters = 0
    for item in items:
        records = [record for side in item for record in side]
        episodes += len(records)
        characters += sum(len(call.reply) for record in records for call in record.calls)
        group.append(item)
        if episodes >= FILE_EPISODES or characters >= FILE_CHARACTERS:
            yield group
            group, episodes, characters = [], 0, 0
    if group:
        yield group


def _sides(item: Item, roles: Sequence[str], texts: Texts) -> list[list[list[Any]]]:
    return [
        [
            [
                sample_of(record),
                record.score,
                None if record.answer is None else texts.add(one_line(record.answer)),
                int(record.truncated),
                [_flags([call for call in record.calls if call.role == role]) for role in roles],
            ]
            for record in side
        ]
        for side in item
    ]


def _flags(calls: Sequence[Call]) -> int:
    tests = (
        bool(calls),
        any(not call.strict for call in calls),
        any(call.finish == "length" for call in calls),
        any(call.role_score is not None and call.role_score < 1 for call in calls),
    )
    return sum(2**bit for bit, holds in enumerate(tests) if holds)


def one_line(text: str) -> str:
    """The beginning of `text`, in one line."""
    line = " ".join(text[: 4 * LINE].split())
    return line if len(line) <= LINE else f"{line[:LINE]}…"


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
