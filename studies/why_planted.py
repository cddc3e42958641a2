"""What `flowzoo why` says of runs with planted faults, beside their truths in why_planted.toml.

python -m studies.why_planted --out build/why      # writes docs/data/why-planted.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowzoo.envs.tasks import make_task
from flowzoo.files import write_json

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "studies" / "why_planted.toml"
RESULT = ROOT / "docs" / "data" / "why-planted.json"
WRONG = 7  # of ten golds


def write_data(out: Path) -> None:
    """Write training problems of which most golds are wrong, and right held-out ones."""
    out.mkdir(parents=True, exist_ok=True)
    task = make_task("math", level=1)
    for split, name in (("train", "flipped"), ("validation", "held")):
        problems = [task.problem(index, split) for index in range(400)]
        rows = [{"question": one.text, "answer": one.gold} for one in problems]
        for number, row in enumerate(rows if split == "train" else ()):
            if number % 10 < WRONG:
                row["answer"] = str(int(row["answer"]) + 3)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (out / f"{name}.jsonl").write_text(text, encoding="utf-8")


def call(words: list[str]) -> str:
    """Run a command of flowzoo and return what it printed."""
    command = [sys.executable, "-m", "flowzoo.cli", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def explain(run: Mapping[str, Any], common: str, out: Path) -> dict[str, Any]:
    """Train a planted run if it is not finished, explain it, and compare with its truth."""
    folder = out / run["name"]
    if not (folder / "summary.json").is_file():
        workflow, *own = shlex.split(run["args"])
        call(["train", workflow, *shlex.split(common), *own, "--out", str(folder)])
    facts = json.loads(call(["why", str(folder), "--jobs", "2", "--json"]))
    words = {
        tuple(sorted(unit.removeprefix("--").split(" ")[0].replace("-", "_") for unit in units))
        for units in facts["culprits"]
    }
    truth = tuple(sorted(name.split()[0] for name in run["true"]))
    return {
        "run": run["name"], "truth": list(truth), "verdict": facts["verdict"],
        "culprits": facts["culprits"], "change": facts["change"],
        "exact": words == ({truth} if truth else set()) and facts["verdict"] != "undecided",
        "mends": bool(facts["confirmed"]), "fell": facts["fell"], "reruns": facts["made"],
        "minutes": facts["minutes"],
    }  # fmt: skip


def main() -> None:
    """Explain runs until the minutes are spent, and write the table of those that were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/why"))
    parser.add_argument("--minutes", type=float, default=60.0)
    options = parser.parse_args()
    began, rows = time.monotonic(), []
    write_data(options.out)
    table = tomllib.loads(RUNS.read_text(encoding="utf-8"))
    for run in table["runs"]:
        if time.monotonic() - began > 60 * options.minutes:
            break
        rows.append(explain(run, table["common"], options.out))
        print(json.dumps(rows[-1]), flush=True)
        command = "python -m studies.why_planted --out build/why"
        write_json(RESULT, {"command": command, "rows": rows})


if __name__ == "__main__":
    main()
