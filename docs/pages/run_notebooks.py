"""Run the notebooks, and keep printed lines and values but no times, warnings and bars."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
_PATIENCE = 600
"""Most seconds for a cell, and for the kernel to start: the machine may be busy."""


def run(path: Path, folder: Path) -> Any:
    """The notebook of `path` after its cells were run in `folder`, with the outputs to be kept.

    Raises:
        CellExecutionError: a cell raised.
    """
    notebook: Any = nbformat.read(path, as_version=4)
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    kernel = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    resources = {"metadata": {"path": str(folder)}}
    client = nbclient.NotebookClient(
        notebook, timeout=_PATIENCE, startup_timeout=_PATIENCE, resources=resources
    )
    client.execute(env=kernel)
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [text for output in cell.outputs if (text := _plain(output))]
    notebook.metadata.language_info = {"name": "python"}  # else the interpreter's version, too
    return notebook


def _plain(output: Any) -> Any:
    if output.output_type == "stream" and output.name == "stdout":
        return output
    if output.output_type == "execute_result":
        output.data = {"text/plain": output.data["text/plain"]}
        return output
    return None


def main() -> None:
    """Rewrite the notebooks named on the command line, or all."""
    for path in map(Path, sys.argv[1:] or sorted(NOTEBOOKS.glob("*.ipynb"))):
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run(path, Path(folder)), path)


if __name__ == "__main__":
    main()
