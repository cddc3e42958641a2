"""Settings of the documentation's build: `make docs`."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from docutils import nodes
from sphinx.application import Sphinx

import flowzoo
from pages import write_all

logging.getLogger("flowzoo").setLevel(logging.WARNING)
logging.getLogger("bm25s").disabled = True  # it sets its own level when it is imported

project = "flowzoo"
author = "The flowzoo authors"
copyright = author
version = release = flowzoo.__version__

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "pages.docstrings", "pages.mathml",
    "pages.offline", "sphinx_llms_txt",
]  # fmt: skip
llms_txt_summary = (  # llms.txt and llms-full.txt, for models that read documentation
    "Workflows of language models as PettingZoo environments, with rewards that are checked and "
    "multi-agent GRPO trainers."
)
exclude_patterns = ["pages", "static", "templates"]
templates_path = ["templates"]
myst_heading_anchors = 4  # `page.md#a-heading`, as code hosts number them
html_math_renderer = "mathml"

default_role = "code"  # docstrings write code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_display_short_literal_types = True
python_maximum_signature_line_length = 80

html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines the names of modules
html_title = "flowzoo"
html_static_path = ["static"]
html_css_files = ["style.css"]
html_show_sourcelink = False
html_copy_source = True  # llms-full.txt is made of the sources
html_show_copyright = False
html_context = {"versions": "FLOWZOO_DOCS_VERSIONS" in os.environ}  # set by tools/docs_versions.py
html_sidebars = {
    "**": [
        *("sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html"),
        *("sidebar/navigation.html", "sidebar/versions.html", "sidebar/scroll-end.html"),
    ]
}
html_theme_options = {"footer_icons": [], "top_of_page_buttons": []}
copybutton_exclude = ".linenos, .gp, .go"


_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+)\)")
"""The target of a link to a file."""


def relink(app: Sphinx, path: Path, parent: str, content: list[str]) -> None:
    """Let links of a file at the root of the repository, shown in a page, lead to pages."""

    def on_site(match: re.Match[str]) -> str:
        target = match[1]
        if target.startswith("docs/"):
            return f"](/{target.removeprefix('docs/')})"
        page = f"project/{target.partition('.')[0].lower()}.md"
        return f"](/{page})" if (HERE / page).exists() else f"](/../{target})"

    content[0] = _LINK.sub(on_site, content[0])


def keep_percent(app: Sphinx, document: nodes.document, name: str) -> None:
    """Let no line end between a number and its percent sign."""
    for text in list(document.findall(nodes.Text)):
        joined = re.sub(r"(?<=\d) %", "\u00a0%", text)
        code = isinstance(text.parent, nodes.literal | nodes.FixedTextElement)
        if joined != text and not code:
            text.parent.replace(text, nodes.Text(joined))


def color_commands(app: Sphinx, document: nodes.document) -> None:
    """Let blocks of a page that name no language be commands; in docstrings they are Python."""
    if not app.env.docname.startswith("api/"):
        for block in document.findall(nodes.literal_block):
            if block.get("language") == "default":
                block["language"] = "shell"


def setup(app: Sphinx) -> None:
    """Write the generated pages before anything is read."""
    app.connect("builder-inited", lambda app: write_all(Path(app.srcdir) / "generated"))
    app.connect("include-read", relink)
    app.connect("doctree-read", color_commands)
    app.connect("doctree-resolved", keep_percent)
