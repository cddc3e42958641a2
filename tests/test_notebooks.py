"""The notebooks run in a kernel, and print what they say they print, but for the figures in it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flowzoo.extras import REPOSITORY

nbformat = pytest.importorskip("nbformat", reason="notebooks need flowzoo[dev]")
pytest.importorskip("nbclient", reason="notebooks need flowzoo[dev]")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
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


@pytest.mark.full
def test_the_first_cell_installs_from_a_clone_where_flowzoo_is_missing(tmp_path):
    cells = {nbformat.read(path, as_version=4).cells[1].source for path in NOTEBOOKS}
    (cell,) = cells  # the same in all
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    # git takes this repository for the published one; the core installs like the extra.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.file://{ROOT}.insteadOf",
        "GIT_CONFIG_VALUE_0": REPOSITORY,
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    installed = f"assert find_spec('flowzoo').origin.startswith({str(tmp_path)!r})"
    code = f"{cell.replace('[train]', '')}\n{installed}"
    for _ in range(2):  # the second time there is nothing to do
        subprocess.run(
            [tmp_path / "venv/bin/python", "-c", code], cwd=tmp_path, env=env, check=True
        )


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
