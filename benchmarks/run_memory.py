"""Peak memory of `flowzoo train` on a CPU: the whole process, with all weights and with an adapter.

    python -m benchmarks.run_memory MODEL [--json FILE]

Each run takes two steps of 16 replies of at most 64 tokens with layers checkpointed and
`--weights bfloat16`, in a process of its own, whose largest resident set is that of getrusage(2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

RUNS = {"all weights": [], "LoRA of rank 16": ["--lora-rank", "16"]}
OPTIONS = """
    --options level=1 --steps 2 --problems 4 --samples 4 --max-tokens 64 --eval-problems 8
    --microbatch-tokens 1024 --gradient-checkpointing --weights bfloat16 --threads 1
"""


def peak_gib(arguments: list[str]) -> float:
    """Largest resident set of a command, in GiB."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"{' '.join(arguments)} ended with status {code}")
    return usage.ru_maxrss / 2**20


def main() -> None:
    """Measure both runs and print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder, a GGUF file or a hub id")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for name, arguments in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            line = [sys.executable, "-m", "flowzoo", "train", "single", "--model", options.model]
            peak = peak_gib([*line, *OPTIONS.split(), *arguments, "--out", f"{folder}/run"])
        rows.append([name, f"{peak:.1f}"])
        print(f"{name}: {peak:.1f} GiB", flush=True)
    if options.json is not None:
        command = f"python -m benchmarks.run_memory {options.model}"
        data = {"command": command, "columns": ["trained", "GiB"], "rows": rows}
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
