"""Runs with planted faults and healthy ones, and what their pages say of them.

python -m studies.diagnosis run --out build/diagnosis            # 50 runs, 20 CPU seconds each
python -m studies.diagnosis judge --out build/diagnosis          # docs/data/truth-diagnosis.json

`--runs studies/diagnosis_fresh.toml --out build/fresh` does the same for runs that the diagnosis
was not mended with.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData, read_run
from flowzoo.files import write_json

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "studies" / "diagnosis.toml"
RESULTS = ROOT / "docs" / "data"


def train(runs_file: Path, out: Path, only: list[str]) -> None:
    """Train what is not finished yet, one run after another."""
    table = tomllib.loads(runs_file.read_text(encoding="utf-8"))
    for run in table["runs"]:
        folder = out / run["name"]
        if (folder / "summary.json").is_file() or (only and run["name"] not in only):
            continue
        common = table["healthy_common" if run["kind"] == "healthy" else "common"]
        # The last of several values counts: a setting of the run wins over a common one.
        workflow, *own = shlex.split(run["args"])
        words = [workflow, *shlex.split(common), *own, "--out", str(folder)]
        command = [sys.executable, "-m", "flowzoo.cli", "train", *words]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (out / f"{run['name']}.log").open("w") as log:
            status = subprocess.run(command, stdout=log, stderr=log, cwd=ROOT).returncode
        print(run["name"], f"status {status}", flush=True)


def finished(runs_file: Path, out: Path) -> Iterator[tuple[dict[str, Any], RunData]]:
    """The planned runs that are finished."""
    for run in tomllib.loads(runs_file.read_text(encoding="utf-8"))["runs"]:
        if (out / run["name"] / "summary.json").is_file():
            yield run, read_run(out / run["name"], run["name"])


def judge(runs_file: Path, out: Path) -> None:
    """Compare the pages with the truth, and write the table."""
    rows: list[list[Any]] = []
    for run, data in finished(runs_file, out):
        facts = run_facts(data)
        diagnosis = facts["diagnosis"] or {}
        problems = [one["title"] for one in facts["findings"] if one["level"] == "bad"]
        warnings = [one["title"] for one in facts["findings"] if one["level"] == "warn"]
        truth = run.get("true", {})
        roles = truth.get("roles", [])
        rows.append(
            [
                run["name"], run["kind"], bool(truth.get("broken")), bool(problems),
                ", ".join(roles), diagnosis.get("role", ""), problems, warnings,
            ]
        )  # fmt: skip
    broken = [row for row in rows if row[2]]
    called = [row for row in broken if row[3]]
    of_roles = [row for row in called if row[4]]
    right_role = [row for row in of_roles if row[5] in row[4].split(", ")]
    sound = [row for row in rows if not row[2]]
    counts = {
        "broken": len(broken), "called": len(called), "with a role": len(of_roles),
        "right role": len(right_role), "sound": len(sound),
        "sound with a Problem": sum(row[3] for row in sound),
        "yellow lines of sound ones": sum(len(row[7]) for row in sound),
    }  # fmt: skip
    columns = ["run", "kind", "broken", "called", "true roles", "role",
               "problems", "warnings"]  # fmt: skip
    command = f"python -m studies.diagnosis judge --runs studies/{runs_file.name}"
    result = RESULTS / f"truth-{runs_file.stem.replace('_', '-')}.json"
    write_json(result, {"command": command, "counts": counts, "columns": columns, "rows": rows})
    print(counts)
    for row in rows:
        wrong = row[2] != row[3] or (row[2] and row[4] and row[5] not in row[4])
        if wrong or (not row[2] and row[7]):
            print(row)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", choices=("run", "judge"))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "diagnosis")
    parser.add_argument("--runs", type=Path, default=RUNS, help="the file of runs")
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    if options.part == "run":
        train(options.runs, options.out, options.only)
    else:
        judge(options.runs, options.out)


if __name__ == "__main__":
    main()
