"""Measured figures of the documentation equal `docs/data`, and no other figures are measured."""

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "docs"))

from pages import figures  # noqa: E402


def test_every_figure_is_as_it_was_measured():
    assert figures.problems(write=False) == []


def changed(page: str, old: str, new: str) -> tuple[str, str]:
    """A page's text, and a copy in which a hand changed something."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count(old) >= 1, f"{page} no longer says {old!r}"
    return text, text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("page", "old", "new"),
    [
        (
            "docs/results.md",
            "| grpo, shared | 42.2 % | 87.5 % |",
            "| grpo, shared | 42.2 % | 97.5 % |",
        ),
        ("README.md", "42.2 %", "32.2 %"),
        ("docs/measured/diagnostics.md", "1.7 % (3.0 %)", "0.7 % (3.0 %)"),
        ("docs/pilot.md", "+78.4 (+73.0 to +83.5)", "+88.4 (+73.0 to +83.5)"),
    ],
)
def test_a_figure_edited_by_hand_is_put_back(page, old, new):
    text, copy = changed(page, old, new)
    assert figures.filled(page, text)[0] == text
    assert copy != text
    assert figures.filled(page, copy)[0] == text


def test_words_around_a_figure_may_not_change_unseen():
    _, copy = changed("README.md", "takes this team from", "takes a team from")
    with pytest.raises(figures.FigureError, match="found 0 times"):
        figures.filled("README.md", copy)


@pytest.mark.parametrize(
    "added",
    ["It is 37 % faster.", "A step takes 2.5 ms.", "It needs 3 to 4 GB.", "4.1 times less."],
)
def test_a_new_figure_is_reported_unless_the_data_hold_it(added):
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    assert figures.unheld("docs/concepts.md", text) == []
    [message] = figures.unheld("docs/concepts.md", f"{text}\n{added}\n")
    assert re.search(r"\d", message)


def test_every_file_of_data_has_a_command():
    for path in (ROOT / "docs" / "data").glob("*.json"):
        if path.stem in ("bench", "sentences", "limits"):
            continue
        assert figures.load(path.stem)["command"]
    for parts in figures.load("sentences").values():
        assert all(part["command"] for part in parts)
    for page, places in figures.load("limits").items():
        text = (ROOT / page).read_text(encoding="utf-8")
        sections = {name for _, name in figures.headings(text)} | {""}
        assert set(places) <= sections, page
