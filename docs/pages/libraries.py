"""A page for every library: what works in it, and the whole script that a check runs.

Rows are those of the table in `docs/libraries.md`, which `benchmarks/third_party/run.py` writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CHECKS = "benchmarks/third_party"


class Library(NamedTuple):
    """A library in the table and the files that use it."""

    row: str
    """Beginning of its row in the table."""
    files: tuple[str, ...]
    """Scripts of the page, beside the check; the first is the one to begin with."""
    section: str = ""
    """Anchor in docs/libraries.md."""


LIBRARIES = {
    "gymnasium": Library("Gymnasium", (), "texts-in-vector-environments"),
    "supersuit": Library("SuperSuit", ()),
    "torchrl": Library("TorchRL", (), "torchrl"),
    "rllib": Library("RLlib", (f"{CHECKS}/arrays.py",), "libraries-of-arrays"),
    "tianshou": Library("Tianshou", (f"{CHECKS}/arrays.py",), "libraries-of-arrays"),
    "inspect": Library("Inspect", (), "inspect"),
    "verifiers": Library("verifiers", (f"{CHECKS}/flowzoo_voting.py",), "verifiers"),
    "openenv": Library(
        "OpenEnv",
        ("examples/openenv/server.py", "examples/openenv/models.py", "examples/openenv/client.py"),
    ),
    "trl": Library(
        "datasets, TRL", (f"{CHECKS}/trl_adapters.py",), "one-agent-in-trls-grpotrainer"
    ),
}
GRPO = """# Plain GRPO
The AEC interface, torch and transformers, and nothing else of flowzoo's training.
`tests/test_grpo_example.py` runs the loop.

```shell
OMP_NUM_THREADS=1 python examples/grpo_from_scratch.py
```

"""


def library_pages() -> dict[str, str]:
    """File name -> page."""
    text = (ROOT / "docs/libraries.md").read_text(encoding="utf-8")
    pages = {f"{name}.md": page_of(name, library, text) for name, library in LIBRARIES.items()}
    return {**pages, "grpo.md": GRPO + script("examples/grpo_from_scratch.py")}


def page_of(name: str, library: Library, text: str) -> str:
    """The page, in Markdown."""
    title, rows = rows_of(library.row, text)
    more = f" [More about it](../../libraries.md#{library.section})." if library.section else ""
    files = (*library.files, f"{CHECKS}/check_{name}.py")
    return "\n".join(
        [
            f"# {library.row}",
            f"Checked with {title}. The check runs the scripts below in an environment of its own "
            f"and fails if a row is no longer true.{more}",
            "",
            "```shell",
            f'make third-party LIBRARIES="{name}"',
            "```",
            "",
            "| | result |",
            "|---|---|",
            *rows,
            "",
            *map(script, files),
        ]
    )


def rows_of(label: str, text: str) -> tuple[str, list[str]]:
    """Versions of a library and its rows in the table, with links from a generated page.

    Raises:
        ValueError: the table has no such library.
    """
    lines = iter(text.splitlines())
    first = next((line for line in lines if line.startswith(f"| **{label}**")), None)
    if first is None:
        raise ValueError(f"docs/libraries.md: expected a row of {label}, got none")
    versions, rows = first.split("|")[1].strip().partition("** ")[2].strip("()"), [first]
    for line in lines:
        if not line.startswith("|  |"):
            break
        rows.append(line)
    cells = [f"|{row.split('|', 2)[2]}" for row in rows]
    return versions, [
        cell.replace("](../", "](../../../")
        .replace("](episodes.md", "](../../episodes.md")
        .replace("](#", "](../../libraries.md#")
        for cell in cells
    ]


def script(path: str) -> str:
    """A file of the repository, whole."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    fence = "`" * 8
    return f"## {Path(path).name}\n`{path}`\n\n{fence}python\n{text}\n{fence}\n"
