"""Peak memory of `flowzoo train` on a CPU: the whole process, beside what `benchmarks.plan` counts.

    python -m benchmarks.run_memory MODEL [--settings NAME ...] [--rows 16 64] [--json FILE]
    python -m benchmarks.run_memory MODEL --rows 4 --problem-tokens 8000 [--json FILE]

Each run takes two steps with replies of 64 tokens, which all are trained on, in a process of its
own, whose largest resident set is that of getrusage(2). `--json` adds the measurements to those in
FILE; `--runs 0` plans again what was measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.record import write_results

GIB = 2**30
SAMPLES = 4
TRAINED = {"all weights": [], "LoRA of rank 16": ["--lora-rank", "16"]}
CHECKPOINTED = "--weights bfloat16 --gradient-checkpointing --microbatch-tokens 1024"
SETTINGS = {
    "default": [],
    "int8": ["--engine-dtype", "int8"],
    "checkpointed": CHECKPOINTED.split(),
}
"""Options by the name of a cell's settings."""
OPTIONS = """
    --steps 2 --max-tokens 64 --eval-problems 2 --threads 1
    --temperature 3 --entropy 1e-9 --truncated train
"""
COLUMNS = ["measured / planned GiB (ratio)", "rows", *TRAINED]


def measured_gib(arguments: list[str]) -> float:
    """Largest resident set of `flowzoo train`, in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "flowzoo", "train", *arguments, "--out", f"{folder}/run"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(command)[:1000]} ended with status {code}")
    return usage.ru_maxrss * 1024 / GIB


def planned_gib(arguments: list[str]) -> float:
    """Largest resident set by `benchmarks.plan`, in GiB."""
    command = [sys.executable, "-m", "benchmarks.plan", *arguments, "--gpus", "0", "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return float(json.loads(done.stdout)["peak"]) / GIB


def write_problems(path: Path, model: str, tokens: int) -> None:
    """Write problems of about `tokens` tokens each."""
    from transformers import AutoTokenizer

    from flowzoo.agents.model_files import model_source

    tokenizer: Any = AutoTokenizer.from_pretrained(model_source(model), trust_remote_code=False)
    with path.open("w", encoding="utf-8") as file:
        for number in range(64):
            line = f"Ann has {number} apples and buys 3 more. "
            count = max(1, tokens // len(tokenizer(line, add_special_tokens=False).input_ids))
            problem = {"problem": line * count, "answer": str(number + 3)}
            file.write(json.dumps(problem) + "\n")


def text_of(cell: dict[str, Any]) -> str:
    """Measured and planned GiB of a cell, and the quotient."""
    measured = mean(cell["measured"])
    return f"{measured:.2f} / {cell['planned']:.2f} ({measured / cell['planned']:.2f})"


def write(path: Path, cells: dict[str, Any]) -> None:
    """Write the cells, by model, settings, rows and trained weights, and their table."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for name, cell in cells.items():
        model, settings, count, trained = name.split(", ")
        rows.setdefault((f"{model}, {settings}", count), {})[trained] = text_of(cell)
    data = {
        "command": "python -m benchmarks.run_memory MODEL",
        "columns": COLUMNS,
        "rows": [[*key, *(row.get(name, "–") for name in TRAINED)] for key, row in rows.items()],
        "cells": cells,
    }
    write_results(path, data)


def main() -> None:
    """Measure the runs and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a GGUF file or a hub id")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["default"])
    parser.add_argument("--trained", nargs="+", choices=TRAINED, default=list(TRAINED))
    parser.add_argument("--rows", nargs="+", type=int, default=[16])
    parser.add_argument(
        "--problem-tokens", type=int, default=0, help="of a problem; 0: generated problems"
    )
    parser.add_argument("--runs", type=int, default=1, help="of every cell")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = Path(options.model).name.partition("-Instruct")[0]
    cells: dict[str, Any] = {}
    if options.json is not None and options.json.is_file():
        cells = json.loads(options.json.read_text(encoding="utf-8")).get("cells", {})
    with tempfile.TemporaryDirectory() as folder:
        problems = Path(folder) / "problems.jsonl"
        if options.problem_tokens:
            write_problems(problems, options.model, options.problem_tokens)
        fill(options, model, problems, cells)


def fill(options: argparse.Namespace, model: str, problems: Path, cells: dict[str, Any]) -> None:
    """Measure and plan every cell."""
    long = options.problem_tokens
    for settings, rows, trained in product(options.settings, options.rows, options.trained):
        line = ["single", "--model", options.model, *OPTIONS.split()]
        line += ["--problems", str(rows // SAMPLES), "--samples", str(SAMPLES)]
        line += [*TRAINED[trained], *SETTINGS[settings]]
        line += ["--options", f"data={problems}" if long else "level=1"]
        size = f"{rows} of {long} tokens" if long else str(rows)
        name = f"{model}, {settings}, {size}, {trained}"
        cell = cells.setdefault(name, {"measured": []})
        cell["measured"] += [round(measured_gib(line), 3) for _ in range(options.runs)]
        cell["planned"] = round(planned_gib(line), 3)
        print(f"{name}: {text_of(cell)}", flush=True)
        if options.json is not None:
            write(options.json, cells)


if __name__ == "__main__":
    main()
