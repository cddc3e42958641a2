"""The gallery: the first two validation problems of every task and level, with their answers."""

from __future__ import annotations

import re
from typing import Any

from flowzoo.envs.tasks import make_task
from flowzoo.envs.tasks.task import Problem, get_problem

SHOWN, LONGEST = 2, 300

CHOICES: dict[str, list[dict[str, Any]]] = {
    "math": [{"level": level} for level in (1, 2, 3, 4)],
    "code": [{"level": level} for level in (1, 2, 3)],
    "plan_path": [{"side": 5}, {"side": 10}],
    "sokoban": [{"side": 6}, {"side": 6, "boxes": 2}],
    "sudoku": [{"side": 4}, {"side": 9}],
    "search": [{"level": level} for level in (1, 2, 3)],
    "writing": [{"form": "tldr"}, {"form": "expansion"}],
}
"""Task -> the options that are shown."""

HEAD = """# Gallery
The first two validation problems of every task and level, with their answers. Problems are
generated from split, seed and index; `--options data=FILE` takes a file instead. See
[Environments](../../environments.md) for prompts.
"""


def gallery() -> str:
    """The page."""
    parts = [HEAD]
    for name, choices in CHOICES.items():
        parts.append(f"## {name}\n")
        for options in choices:
            task = make_task(name, **options)
            arguments = " ".join(f"{key}={value}" for key, value in options.items())
            parts.append(f"### `{name}`, `--options {arguments}`\n")
            parts += [sample(get_problem(task, index, "validation")) for index in range(SHOWN)]
    return "\n".join(parts)


def sample(problem: Problem) -> str:
    """A problem and its answer, in a fence that nothing in them can close."""
    lines = [shown(problem.text), "", f"answer: {shown(problem.gold)}"]
    text = "\n".join(line.rstrip() for part in lines for line in part.split("\n"))
    ticks = max([2, *map(len, re.findall(r"`+", text))]) + 1
    return f"{'`' * ticks}text\n{text}\n{'`' * ticks}\n"


def shown(text: str) -> str:
    """The text, or its beginning where it is long."""
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text):,} characters)"
