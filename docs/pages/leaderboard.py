"""The leaderboard of a real model, from the JSON that `flowzoo leaderboard` writes."""

from __future__ import annotations

import json
from pathlib import Path

from flowzoo.agents.evaluation.comparison import as_markdown

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "docs" / "data" / "real-leaderboard.json"
BOARD = "benchmarks/real_leaderboard.toml"


def leaderboard_page() -> str:
    """The page, in Markdown."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    cells = (ROOT / BOARD).read_text(encoding="utf-8")
    return (
        "# Leaderboard\nOne small model in five workflows on two sets.\n\n"
        f"```shell\n{data['command']}\n```\n\n"
        f"```{{code-block}} toml\n:caption: {BOARD}\n\n{cells}```\n\n{as_markdown(data['tables'])}"
    )
