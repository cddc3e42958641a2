"""Programs of agent libraries: played, evaluated and trained with a policy for each agent.

python benchmarks/third_party/agent_matrix.py [LIBRARY ...] [--write]      (or `make third-party`)

Each library is in an environment of its own, as in `run.py`, and its program is written as the
library's users write it: agents in globals, clients that are never closed. A cell fails if an
episode ends by anything but an answer, a request is refused, a policy is not updated in a step, or
more than 20 lines are printed to standard error. `--write` puts rows into
docs/data/agent-matrix.json.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from run import LIBRARIES, ROOT, prepare

from flowzoo.cli import main as flowzoo

ROWS = ROOT / "docs" / "data" / "agent-matrix.json"
MOST_LINES, MOST_ERRORS, STEPS = 40, 20, 8
"""Most lines of a program without empty ones, and of a cell's standard error; training steps."""
CELL = "cell of the matrix: "


class AgentProgramFile(NamedTuple):
    """A program of `examples/agents`, and the packages that it needs."""

    file: str
    packages: tuple[str, ...]
    options: tuple[str, ...] = ("at_once=1",)


PROGRAMS = {
    "plain client, threads": AgentProgramFile("plain_review.py", ("openai==3.54.0",), ()),
    "plain client, async": AgentProgramFile("plain_vote.py", ("openai==3.54.0",), ()),
    "ag2": AgentProgramFile("ag2_review.py", ("ag2[openai]==1.2.1",)),
    "LangGraph": AgentProgramFile(
        "langgraph_review.py", ("langgraph==1.2.24", "langchain-openai==1.7.4")
    ),
    "OpenAI Agents SDK": AgentProgramFile("openai_agents_pair.py", ("openai-agents==0.24.0",)),
    "Pydantic AI": AgentProgramFile("pydantic_ai_pair.py", ("pydantic-ai-slim[openai]==2.68.0",)),
    "LlamaIndex": AgentProgramFile(
        "llama_index_chain.py",
        ("llama-index-core==0.14.25", "llama-index-llms-openai-like==0.8.1"),
    ),
    "Haystack": AgentProgramFile("haystack_pipeline.py", ("haystack-ai==3.4.1",)),
    "LiteLLM": AgentProgramFile("litellm_pair.py", ("litellm==1.110.2",)),
    "Agno": AgentProgramFile("agno_team.py", ("agno==3.1.10", "openai==3.54.0")),
    "smolagents": AgentProgramFile("smolagents_code.py", ("smolagents[openai]==1.26.0",)),
}


def cell(name: str) -> None:
    """Play, evaluate and train a library's program; print a line of JSON about it."""
    program, began = PROGRAMS[name], time.perf_counter()
    path = f"examples/agents/{program.file}"
    given = ["--program", f"{path}:solve"]
    given += ["--options", *program.options] if program.options else []
    with tempfile.TemporaryDirectory() as folder:
        command("play", *given, "--policy", "pocket")
        command("eval", *given, "--policy", "pocket", "--n", "4", "--out", f"{folder}/eval")
        lines = Path(folder, "eval", "episodes.jsonl").read_text(encoding="utf-8").splitlines()
        episodes = [json.loads(line) for line in lines]
        command(
            "train", *given, "--steps", str(STEPS), "--problems", "2", "--samples", "2",
            "--sharing", "isolated", "--eval-problems", "4", "--eval-every", str(STEPS),
            "--out", f"{folder}/run",
        )  # fmt: skip
        summary = json.loads(Path(folder, "run", "summary.json").read_text(encoding="utf-8"))
    for episode in episodes:
        facts = episode["facts"]
        if facts["ended"] != "answer" or facts["refused"]:
            sys.exit(f"an episode ended by {facts}")
    updates = summary["policy_updates"]
    if not all(updates.values()):
        sys.exit(f"a policy was not updated: {updates}")
    packages = [package.partition("=")[0].partition("[")[0] for package in program.packages]
    versions = [f"{of} {importlib.metadata.version(of)}" for of in packages]
    size = len([line for line in Path(path).read_text(encoding="utf-8").splitlines() if line])
    row = [
        f"**{name}** ({', '.join(versions)})",
        f"[{program.file}](../{path}), {size} lines",
        "works",
        f"{sum(len(episode['calls']) for episode in episodes) / len(episodes):.2f}",
        f"{STEPS} steps, {len(updates)} policies",
    ]
    if size > MOST_LINES:
        sys.exit(f"{program.file} has {size} lines, more than {MOST_LINES}")
    print(CELL + json.dumps({"row": row, "seconds": time.perf_counter() - began}), flush=True)


def command(*words: str) -> None:
    """Run a command of flowzoo, which must succeed."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = flowzoo([*words])
    if status:
        sys.exit(f"flowzoo {words[0]} ended with {status}: {output.getvalue()[-2000:]}")


def check(name: str) -> list[str]:
    """Run a cell in its environment; its row, or an empty one if it failed."""
    word = "agents-" + name.replace(" ", "-").replace(",", "")
    LIBRARIES[word] = list(PROGRAMS[name].packages)
    done = subprocess.run(
        [prepare(word), Path(__file__), "--cell", name],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": str(ROOT)},
    )
    errors = done.stderr.splitlines()
    found = [line for line in done.stdout.splitlines() if line.startswith(CELL)]
    if done.returncode or not found or len(errors) > MOST_ERRORS:
        last = "\n".join(errors[-25:])
        print(f"{name}: FAILED, {len(errors)} lines of standard error\n{last}", flush=True)
        return []
    row: dict[str, Any] = json.loads(found[-1].removeprefix(CELL))
    print(f"{name}: {row['seconds']:.0f} s, {row['row']}, {len(errors)} lines", flush=True)
    return [*row["row"], str(len(errors))]


def write(rows: list[list[str]]) -> None:
    """Put rows into their file, in the place of earlier ones of the same libraries."""
    data = json.loads(ROWS.read_text(encoding="utf-8"))
    by_name = {row[0].partition(" (")[0]: row for row in [*data["rows"], *rows]}
    data["rows"] = list(by_name.values())
    ROWS.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Check the libraries that are named, or all."""
    reader = argparse.ArgumentParser(description=__doc__)
    reader.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(PROGRAMS))
    reader.add_argument("--write", action="store_true", help="write rows")
    reader.add_argument("--cell", choices=PROGRAMS, help="run one cell in this environment")
    given = reader.parse_args()
    if given.cell:
        cell(given.cell)
        return
    if unknown := set(given.libraries) - set(PROGRAMS):
        reader.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(PROGRAMS)}")
    is_good = True
    for name in given.libraries or PROGRAMS:
        row = check(name)
        is_good = is_good and bool(row)
        if row and given.write:
            write([row])
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
