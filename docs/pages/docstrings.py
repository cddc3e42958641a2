"""Docstrings for Sphinx: Google sections and the little Markdown that ours use, in its markup.

Napoleon's own hook is not used, because it takes what stands before a colon in the docstring of an
attribute for its type; its parser of Google sections is.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

_STUCK = re.compile(r"(?<![`\w])(`[^`\n]+`)(?=\w)")
"""A letter right behind code, as in "`Ask`s"; reStructuredText wants a mark between them."""
_SECTIONS: Any = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)


def marked_up(lines: list[str]) -> list[str]:
    """Lines in which an indented block after a paragraph is code, and code ends where it ends."""
    marked: list[str] = []
    for number, line in enumerate(lines):
        indented = line.startswith("    ") and number >= 2 and not lines[number - 1].strip()
        before = next((text for text in reversed(marked) if text.strip()), "")
        if indented and before and not before.startswith((" ", "*")):
            marked += ["::", ""]
        marked.append(_STUCK.sub(r"\1\\ ", line))
    return marked


def process(
    app: Sphinx, what: Any, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Rewrite the lines of one docstring in place."""
    if lines and lines[0].startswith("Alias for field number "):  # what a NamedTuple says by itself
        lines.clear()
    marked = marked_up(lines)
    if what in ("module", "attribute", "data", "property"):
        lines[:] = marked
    else:
        lines[:] = GoogleDocstring(marked, _SECTIONS, app, what, name, obj, options).lines()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the hook."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
