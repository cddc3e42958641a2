"""The notebooks run in a kernel, and print what they say they print, but for the figures in it."""

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need flowzoo[dev]")
pytest.importorskip("nbclient", reason="notebooks need flowzoo[dev]")

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
LARGEST = 12_000
"""Bytes of a notebook with its outputs."""


def openings(notebook: Any) -> list[list[str]]:
    """What every output of every cell of code begins with: its first two words, less figures.

    Figures, and how many lines there are, depend on the machine: sampling is exact on one only.
    """
    message = [
        [output.text if "text" in output else output.data["text/plain"] for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]
    return [[" ".join(re.sub(r"\d+", "#", text).split()[:2]) for text in cell] for cell in message]


@pytest.mark.full
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_prints_what_it_printed(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from pages.run_notebooks import run

    remaining = nbformat.read(path, as_version=4)
    assert openings(run(path, tmp_path)) == openings(remaining)
    assert sum(bool(cell) for cell in openings(remaining)) >= 4
    assert path.stat().st_size < LARGEST


def test_notebooks_become_pages_with_code_outputs_and_links(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    from pages.notebooks import notebook_pages

    pages = notebook_pages()
    assert set(pages) == {f"{path.stem}.md" for path in NOTEBOOKS} >= {"episodes.md", "run.md"}
    for name, text in pages.items():
        assert text.startswith("# ")
        assert f"(../../notebooks/{Path(name).stem}.ipynb)" in text
        assert text.count("```python\n") >= 4 <= text.count("```output\n")
        for target in re.findall(r"\]\((\.\./[^)#]+)", text):
            assert (DOCS / "generated" / "notebooks" / target).resolve().is_file(), target
