"""The page of expectations: whether flowzoo and its peers have them, from `docs/data`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parents[1] / "data" / "expectations.json"
PEERS = ("PettingZoo", "TRL", "verifiers", "Inspect")
SIGNS = {"yes": "yes", "partly": "partly", "no": "no", "not found": "–"}

HEAD = """# Expectations
{count} things that a user may look for, in flowzoo ({yes} yes, {partly} partly, {no} decided
against, with the reason) and in the documentation of {versions}. A dash: no page was found.

{how}
"""


def expectations_page() -> str:
    """The page, in Markdown."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    rows = data["rows"]
    answers = [row["flowzoo"]["answer"] for row in rows]
    counts = {answer: answers.count(answer) for answer in ("yes", "partly", "no")}
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    parts = [HEAD.format(count=len(rows), versions=versions, how=data["how"], **counts)]
    for area, members in groupby(rows, key=lambda row: row["area"]):
        parts.append(f"## {area}\n\n{table(list(members), data['pages'])}\n")
    return "\n".join(parts)


def table(rows: Sequence[Mapping[str, Any]], pages: Mapping[str, Any]) -> str:
    """The rows of an area."""
    lines = [f"| | flowzoo | {' | '.join(PEERS)} |", "|---" * (len(PEERS) + 2) + "|"]
    for row in rows:
        own = row["flowzoo"]
        reason = f"<br><small>{own['reason']}</small>" if "reason" in own else ""
        cells = [f"{row['expectation']}{reason}", own_cell(own)]
        cells += [peer_cell(row[peer], pages[peer]) for peer in PEERS]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def own_cell(own: Mapping[str, str]) -> str:
    """The answer for flowzoo, with a link to the page that has it."""
    if "link" not in own:
        return own["answer"]
    name, _, anchor = own["link"].partition("#")
    page = name if name.endswith(".md") else f"{name}.md"
    return f"[{own['answer']}](../../{page}{'#' if anchor else ''}{anchor})"


def peer_cell(cell: Mapping[str, str], pages: Mapping[str, Mapping[str, str]]) -> str:
    """The answer for a peer, with a link to its page; a star if the page was not read."""
    sign = SIGNS[cell["answer"]]
    if "page" not in cell:
        return sign
    page = pages[cell["page"]]
    star = "" if page.get("seen") == "read" else r" \*"
    return f'[{sign}]({page["url"]} "{page["title"]}"){star}'
