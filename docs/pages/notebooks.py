"""Pages of the notebooks: their cells and the outputs that are kept in them, as Markdown.

Code hosts show notebooks by themselves; for the site this is all that is needed of one, and needs
no kernel. `tests/test_notebooks.py` runs them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
_LINK = re.compile(r"\]\(\.\./(?=[^)\s]+\.md)")


def notebook_pages() -> dict[str, str]:
    """File name -> page, for every notebook."""
    return {
        f"{path.stem}.md": page(json.loads(path.read_text(encoding="utf-8")), path.name)
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
    }


def page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown; the first cell has the title."""
    parts = [part for cell in notebook["cells"] for part in _parts(cell)]
    parts.insert(1, f"[This page as a notebook](../../notebooks/{name})")
    return "\n\n".join(parts) + "\n"


def _parts(cell: dict[str, Any]) -> list[str]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [_LINK.sub("](../../", text)]
    printed = "".join(_output(output) for output in cell["outputs"]).rstrip()
    return [f"```python\n{text}\n```", *([f"```output\n{printed}\n```"] if printed else [])]


def _output(output: dict[str, Any]) -> str:
    if output["output_type"] == "stream":
        return "".join(output["text"])
    return "".join(output["data"]["text/plain"]) + "\n"
