"""Rows of the table of libraries: what works, what cannot, and whose reward rises."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/third_party"))
    import rows

    return rows


def rewards(first, last):
    return lambda seed: [first] * 100 + [0.0] * 50 + [last + seed / 100] * 100


def test_a_reward_that_rises_is_a_row_with_its_interval(rows):
    cell = rows.rise("sb3_ppo", rewards(0.25, 0.75))
    assert cell.startswith("rises from 0.25 to 0.76 (+0.49 to +0.53); ")


@pytest.mark.parametrize("last", [0.25, 0.24, 0.0])
def test_a_reward_that_does_not_rise_is_a_fault(rows, last):
    row = rows.Row("a script", lambda: rows.rise("sb3_ppo", rewards(0.25, last)))
    assert "the reward did not rise: 0.25 to" in row.run()[1]


def test_a_row_that_cannot_says_so_or_is_a_fault(rows):
    def check():
        raise ValueError("no texts")

    assert rows.Row("texts", check, error="no texts", why="arrays").run() == ("cannot: arrays", "")
    assert rows.Row("texts", check).run()[1].startswith("ValueError: no texts")
    assert "was to fail" in rows.Row("texts", dict, error="no texts").run()[1]
    assert rows.Row("texts", dict, using="`TextEnv`").run() == ("works with `TextEnv`", "")


def test_every_script_that_learns_is_short():
    folder = ROOT / "benchmarks/third_party"
    scripts = [path for path in folder.glob("*.py") if "def train(seed" in path.read_text("utf-8")]
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in scripts}
    assert len(lengths) >= 3
    assert max(lengths.values()) <= 40, lengths


@pytest.fixture
def stacks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/third_party"))
    import run

    return run


def test_a_newest_stack_is_installed_without_versions(stacks):
    assert stacks.packages_of("trl==newest")[0] == "trl"
    assert stacks.packages_of("trl==1.18.0")[0] == "trl==1.18.0"
    assert not any("==" in package for package in stacks.packages_of("pettingzoo==newest"))


def test_a_newest_stack_that_breaks_says_where(stacks):
    found = stacks.unreported("trl", "Traceback\nImportError: no module")
    row = stacks.newest_row("trl==newest", found)
    assert row[0] == "**trl**"
    assert row[-1] == "script: ImportError: no module"
    rows = [("a", "works"), ("b", "works")]
    found = {"library": "L", "versions": {"l": "2"}, "rows": rows, "faults": {"b": "E: x\nmore"}}
    assert stacks.newest_row("trl==newest", found)[2:] == ["l 2", "1 of 2", "b: E: x"]
