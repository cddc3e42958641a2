"""The prompts of the public code of arXiv 2605.24202 as a file for `--prompts`.

    python -m tools.published_prompts COPY voting math > voting-math.toml
    flowzoo train --config published/voting-math --prompts voting-math.toml

COPY is a local copy of XHMY/marl-llm-workflows at 6eafb3c: a folder of its files or a bare git
directory, whose `prompt.json` is read as data. The chats of `preset=published` are then those of
that code, but for two places of orch_workers: the head of a solution has the words Worker and not
Solution and Strategy, and a worker without a strategy gets the bare problem.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flowzoo.commands.prompts import quote_toml
from tools.published_readers import PublicCode

FILES = {"math": "examples/math_reasoning", "code": "examples/deepcoder"}
TABLES = {
    "math": {"single": "multi_agent_math_prompts", "voting": "voting_prompts",
             "eval_opt": "evaluator_optimizer_prompts",
             "orch_workers": "orchestrator_workers_prompts"},
    "code": {"single": "deepcoder_single_agent_prompts", "voting": "deepcoder_voting_prompts",
             "eval_opt": "deepcoder_evaluator_optimizer_prompts",
             "orch_workers": "deepcoder_orchestrator_workers_prompts"},
}  # fmt: skip
"""Table of `prompt.json` by task and workflow."""
PROBLEM = "{problem}"


def converted(texts: dict[str, str], workflow: str, task: str) -> dict[str, str]:
    """Flowzoo's texts of a workflow by name, `instruction` among them, from the public `texts`."""
    kind = "/code" if task == "code" else ""
    if workflow == "single":
        return {"instruction": texts["generator_initial"].format(problem=PROBLEM)}
    if workflow == "voting":
        return {
            "instruction": texts["generator"].format(problem=PROBLEM),
            f"ballot{kind}": texts["aggregator"].replace("{solutions}", "\n{candidates}\n"),
            "candidate": "--- Solution {number} ---\n{text}",
        }
    if workflow == "eval_opt":
        return {
            "instruction": texts["generator_initial"].format(problem=PROBLEM),
            f"evaluate_history{kind}": texts["evaluator_critique"],
            f"improve_history{kind}": texts["generator_refinement"],
            f"improve_otherwise{kind}": texts["generator_refinement"],
        }
    compare = texts["orchestrator_compare"].replace(PROBLEM, "{prompt}")
    return {
        "instruction": PROBLEM,
        "strategies": texts["orchestrator_propose"].replace("{max_subtasks}", "{most}"),
        "strategy": texts["worker_full_solve"].replace(PROBLEM, "{prompt}").replace(
            "{strategy}", "{part}"
        ),
        f"synthesize{kind}": compare.replace("{solutions}", "\n{solutions}\n"),
        "solution": "--- {title} ---\n{text}",
    }  # fmt: skip


def prompts_file(copy: Path, workflow: str, task: str) -> str:
    """The text of a file for `--prompts`."""
    tables: dict[str, Any] = json.loads(PublicCode(copy).source(f"{FILES[task]}/prompt.json"))
    public = tables[TABLES[task][workflow]]
    texts = converted({name: entry["template"] for name, entry in public.items()}, workflow, task)
    lines = [f"instruction = {quote_toml(texts.pop('instruction'))}", "", "[prompts]"]
    return "\n".join([*lines, *(f'"{name}" = {quote_toml(text)}' for name, text in texts.items())])


def main() -> None:
    """Print the file that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("copy", type=Path, help="folder or bare git directory of the public code")
    parser.add_argument("workflow", choices=sorted(TABLES["math"]))
    parser.add_argument("task", choices=sorted(TABLES))
    words = parser.parse_args()
    print(prompts_file(words.copy, words.workflow, words.task))


if __name__ == "__main__":
    main()
