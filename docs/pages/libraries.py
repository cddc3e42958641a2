"""A page for every library: what works in it, and the whole script that a check runs.

Rows are those of `docs/data/libraries.json`, which `benchmarks/third_party/run.py` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CHECKS = "benchmarks/third_party"
DATA = ROOT / "docs" / "data" / "libraries.json"


class Library(NamedTuple):
    """A library and the files that use it."""

    name: str
    """Name in the data."""
    files: tuple[str, ...]
    """Scripts of the page, beside the check; the first is the one to begin with."""
    section: str = ""
    """Anchor in docs/libraries.md."""


LIBRARIES = {
    "gymnasium": Library("Gymnasium", (), "texts-in-vector-environments"),
    "supersuit": Library("SuperSuit", (f"{CHECKS}/supersuit_vectors.py", f"{CHECKS}/writing.py")),
    "agilerl": Library(
        "AgileRL",
        (f"{CHECKS}/agilerl_dqn.py", f"{CHECKS}/agilerl_ippo.py", f"{CHECKS}/writing.py"),
    ),
    "shimmy": Library("shimmy", (f"{CHECKS}/shimmy_board.py",)),
    "loop": Library(
        "A loop in torch", (f"{CHECKS}/gymnasium_loop.py",), "seats-in-which-a-choice-is-learned"
    ),
    "sb3": Library(
        "Stable-Baselines3",
        (f"{CHECKS}/sb3_ppo.py", f"{CHECKS}/sb3_dqn.py", f"{CHECKS}/sb3_maskable.py"),
        "array-based-libraries",
    ),
    "torchrl": Library("TorchRL", (f"{CHECKS}/torchrl_ppo.py",), "torchrl"),
    "rllib": Library("RLlib", (f"{CHECKS}/rllib_two.py",), "array-based-libraries"),
    "tianshou": Library(
        "Tianshou",
        (f"{CHECKS}/tianshou_dqn.py", f"{CHECKS}/tianshou_marl.py"),
        "array-based-libraries",
    ),
    "inspect": Library("Inspect", (), "inspect"),
    "lm_eval": Library("lm-evaluation-harness", ()),
    "verifiers": Library("verifiers", (f"{CHECKS}/flowzoo_voting.py",), "verifiers"),
    "openenv": Library(
        "OpenEnv",
        ("examples/openenv/server.py", "examples/openenv/models.py", "examples/openenv/client.py"),
    ),
    "trl": Library(
        "datasets, TRL", (f"{CHECKS}/trl_adapters.py",), "one-agent-in-trls-grpotrainer"
    ),
    "langgraph": Library(
        "LangGraph", ("examples/agents/langgraph_review.py", f"{CHECKS}/agent_rows.py")
    ),
    "openai_agents": Library(
        "OpenAI Agents SDK",
        ("examples/agents/openai_agents_triage.py", f"{CHECKS}/agent_rows.py"),
    ),
    "pydantic_ai": Library(
        "Pydantic AI",
        ("examples/agents/pydantic_ai_verdict.py", f"{CHECKS}/agent_rows.py"),
    ),
}
GRPO = """# Plain GRPO
The AEC interface, torch and transformers, and nothing else of flowzoo's training.
`tests/test_pages.py` runs the loop.

```shell
OMP_NUM_THREADS=1 python examples/grpo_from_scratch.py
```

"""


def library_pages() -> dict[str, str]:
    """File name -> page."""
    pages = {f"{name}.md": page_of(name, library) for name, library in LIBRARIES.items()}
    return {**pages, "grpo.md": GRPO + script("examples/grpo_from_scratch.py")}


def page_of(name: str, library: Library) -> str:
    """The page, in Markdown."""
    title, rows = rows_of(library.name)
    more = f" [More about it](../../libraries.md#{library.section})." if library.section else ""
    files = (*library.files, f"{CHECKS}/check_{name}.py")
    return "\n".join(
        [
            f"# {library.name}",
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


def rows_of(name: str) -> tuple[str, list[str]]:
    """Versions of a library and its rows as Markdown, with links from a generated page.

    Raises:
        ValueError: the data have no such library.
    """
    libraries = json.loads(DATA.read_text(encoding="utf-8"))["libraries"]
    library = next((item for item in libraries if item["library"] == name), None)
    if library is None:
        raise ValueError(f"{DATA.name}: expected rows of {name}, got none")
    versions = ", ".join(f"{name} {version}" for name, version in library["versions"].items())
    rows = [f"| {what} | {result} |" for what, result in library["rows"]]
    return versions, [
        row.replace("](../", "](../../../")
        .replace("](episodes.md", "](../../episodes.md")
        .replace("](#", "](../../libraries.md#")
        for row in rows
    ]


def script(path: str) -> str:
    """A file of the repository, whole."""
    text = (ROOT / path).read_text(encoding="utf-8").rstrip()
    fence = "`" * 8
    return f"## {Path(path).name}\n`{path}`\n\n{fence}python\n{text}\n{fence}\n"
