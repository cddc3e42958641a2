"""The table of papers: sources of the algorithms, of the workflows and of the bundled settings."""

from __future__ import annotations

import inspect
import re
import sys

from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.envs import WORKFLOWS, make_workflow

PAPER = re.compile(r"arXiv:? ?(\d{4}\.\d{5})(?:v\d+)?")
TITLE = re.compile(r"(?:^|[,;] )([^,;(]+?) \(arXiv:? ?(\d{4}\.\d{5})")
NICKNAMES = {"2510.11062": "AT-GRPO"}
"""Names under which workflows speak of a paper, beside its title."""

HEAD = """# Papers
Sources of algorithms and workflows, made from their entries in the code. Differences to each source
are on the page of the algorithm.

| paper | algorithms | workflows |
|---|---|---|
"""
OTHERS = """
Algorithms without an arXiv paper: {}.
"""


def linked(text: str) -> str:
    """Text whose numbers of papers are links."""
    return PAPER.sub(lambda match: f"[{match[0]}](https://arxiv.org/abs/{match[1]})", text)


def papers_page() -> str:
    """The page, in Markdown."""
    algorithms = {name: algorithm.source for name, algorithm in ALGORITHMS.items()}
    workflows = {
        name: inspect.getdoc(sys.modules[type(make_workflow(name)).__module__]) or ""
        for name in WORKFLOWS
    }
    titles = {
        number: title.strip().removeprefix("After ")
        for text in algorithms.values()
        for title, number in TITLE.findall(text)
    }
    numbers = {
        number
        for text in (*algorithms.values(), *workflows.values())
        for number in PAPER.findall(text)
    }
    rows = []
    for number in sorted(numbers):
        title = titles.get(number, "")
        link = f"{title} [arXiv:{number}](https://arxiv.org/abs/{number})"
        uses = users([number], algorithms, "algorithms")
        signs = [sign for sign in (number, title, NICKNAMES.get(number)) if sign]
        rows.append(f"| {link} | {uses} | {users(signs, workflows, 'environments')} |")
    rest = [
        f"{page(name, 'algorithms')} ({text})"
        for name, text in algorithms.items()
        if not PAPER.search(text)
    ]
    return HEAD + "\n".join(rows) + "\n" + OTHERS.format(", ".join(rest))


def users(signs: list[str], texts: dict[str, str], folder: str) -> str:
    """Links to the pages whose text names the paper by one of `signs`."""
    return ", ".join(
        page(name, folder)
        for name, text in texts.items()
        if any(sign in " ".join(text.split()) for sign in signs)
    )


def page(name: str, folder: str) -> str:
    """A link to a generated page."""
    return f"[{name}](../{folder}/{name}.md)"
