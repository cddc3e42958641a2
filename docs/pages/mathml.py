"""Formulas as MathML, which browsers draw by themselves: no script and no font is loaded."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """A formula within a line."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """A displayed formula, which scrolls on a narrow page."""
    translator.body.append(display(node.astext()))
    raise nodes.SkipNode


def display(formula: str) -> str:
    """The element of a displayed formula."""
    return f'<div class="formula">{tex2mathml(formula, as_block=True)}</div>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
