"""Ten points where the diagnostics missed or misled: what two versions say of the same runs.

    git worktree add --detach ../before b0eb734
    OMP_NUM_THREADS=1 python benchmarks/ten_points.py --before ../before

Trains the runs of `RUNS` that are not in --out yet (4 CPU minutes), has both versions read the same
directories, prints the table and writes it to --json, in which the findings stand in full. Point 7
takes simulated runs: no command is known that shows a capture.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
COMMON = "--samples 8 --warmup 0 --probe-every 0"
XS = f"--model pocket:xs --max-tokens 40 {COMMON}"
VOTING = f"voting --options level=1 --algorithm grpo --problems 4 {XS}"
EVALUATED = "eval_opt --options level=1 preset=paper --algorithm grpo --lr 1e-3 --problems 4"
SEARCH = (
    "search_team --task search --options level=1 top_k=1 --algorithm grpo --sharing isolated "
    f"--problems 4 --max-tokens 24 {COMMON}"
)
MAJORITY = "aggregate=majority credit=local n_votes=12 --updates 0 --rows-per-update 16"
RUNS = {
    "twelve": f"voting --options level=1 {MAJORITY} --algorithm dr_mas --sharing isolated "
    f"--lr 1e-3 --problems 2 --steps 8 --eval-problems 60 --seed 1 {XS}",
    "rises": f"{VOTING} --sharing isolated --lr 2e-4 --steps 8 --seed 0",
    "evaluator": f"{EVALUATED} --sharing shared --steps 12 --seed 4 {XS}",
    "verifier": f"{SEARCH} --lr 1.5e-3 --steps 8 --seed 7",
    "falling": f"{VOTING} --sharing isolated --lr 1e-3 --steps 8 --seed 3",
    "coarse": f"{SEARCH} --lr 3e-3 --steps 40 --eval-every 20 --seed 0",
    **{
        f"cell/seed-{seed}": f"{VOTING} --sharing shared --lr 1e-3 --steps 12 --seed {seed}"
        for seed in (1, 2, 3)
    },
    "below": f"{EVALUATED} --sharing isolated --steps 12 --seed 5 {XS}",
}
"""By name, what `flowzoo train` takes; 160 problems every two steps where nothing else is said."""


class Point(NamedTuple):
    """One of the ten."""

    says: str
    """What was wrong."""
    runs: tuple[str, ...]
    titles: str
    """Pattern of the titles of findings that are about it."""
    figures: str = r"minus end is ([\d.]+ points) \(95\s% interval ([^,)]+)"
    """Pattern of what is quoted of their texts, the groups of its first match."""


POINTS = (
    Point("a fall of 50 points without a verdict", ("twelve",), "cliff|falling|held-out problems"),
    Point("a run that rises", ("rises",), "cliff|fall|lost|shows in|stands out|blamed"),
    Point(
        "checking roles that collapse",
        ("evaluator", "verifier"),
        "collapsed|worse than|cost the most|shows in|stands out",
        r"(?:would change by: |adds )([^;(]+)|(accepts [\d.]+\s%)",
    ),
    Point("a fall in progress", ("falling",), "cliff|fall"),
    Point("three evaluations in 40 steps", ("coarse",), "cliff|fall|evaluations"),
    Point("seeds that fall at different times", ("cell/*",), ""),
    Point("capture by 6 and 12 voters, or where the first share is high", (), ""),
    Point("spikes of policies that solve nearly all", ("verifier",), "spikes", "(at .* steps)"),
    Point("how far an iteration moved", ("falling",), "updates", "moved (.*?) nats"),
    Point(
        "words for a policy that is destroyed",
        ("coarse", "below"),
        "signal|gain|began",
        r"taught nothing: ([^.]*)|: ([+−][\d.]+ points)",
    ),
)
PLANTED = {"6 voters": (6, None), "12 voters": (12, None), "3 voters, first share 0.84": (3, 0.84)}
REPEATS = 20


@dataclass(frozen=True)
class Options:
    """Where things are."""

    before: Path
    """A checkout of the code to compare with."""
    out: Path = Path("runs/ten")
    json: Path = ROOT / "docs" / "data" / "ten-points.json"


def train(out: Path) -> None:
    """The runs that are missing."""
    for name, words in RUNS.items():
        usual = "" if "--eval-every" in words else " --eval-every 2"
        usual += "" if "--eval-problems" in words else " --eval-problems 160"
        if not (out / name / "summary.json").is_file():
            command = ["-m", "flowzoo.cli", "train", *f"{words}{usual}".split()]
            subprocess.run(
                [sys.executable, *command, "--out", str(out / name)], check=True, cwd=ROOT
            )


def planted() -> dict[str, list[list[Any]]]:
    """Runs with a capture, as plain values; the second number is the share of the first step."""
    import numpy as np

    from flowzoo.baselines.diagnostics.simulation import simulate_capture

    found: dict[str, list[list[Any]]] = {}
    for name, (voters, first) in PLANTED.items():
        rng = np.random.default_rng(voters)
        runs = found[name] = []
        excess = 0.15 if voters == 3 else 0.98 - voters / (1 + voters)
        for _ in range(REPEATS):
            run = simulate_capture(excess, 0.8, rng, noise=0.01, voters=voters)
            if first is not None:
                run.mass["generator"][0] = first
            replies = [{k: v.tolist() for k, v in one.items()} for one in (run.before, run.after)]
            runs.append([run.mass, run.tokens, run.steps, *replies])
    return found


def read_all(out: Path, runs: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """What the code that Python finds says of everything; runs in a process of its own."""
    import numpy as np

    from flowzoo.baselines.diagnostics.capture import find_captures
    from flowzoo.baselines.report.cells import cell_facts, group_cells
    from flowzoo.baselines.report.reading import read_runs
    from flowzoo.baselines.report.run_facts import run_facts

    facts = {name: run_facts(read_runs([out / name])[0]) for name in RUNS}
    members = read_runs([out / "cell"])
    cell = cell_facts(group_cells(members)[0], {run.name: run_facts(run) for run in members})
    captured = {}
    for name, several in runs.items():
        found = [
            find_captures(
                *one[:3], *({k: np.array(v) for k, v in part.items()} for part in one[3:])
            )
            for one in several
        ]
        captured[name] = sum(any(pair.captured for pair in pairs) for pairs in found)
    return {
        "runs": {
            name: {
                "held_out": [round(100 * level) for _, level, *_ in fact["held_out"]],
                "findings": [[one["title"], one["text"]] for one in fact["findings"]],
            }
            for name, fact in facts.items()
        },
        "cell": {
            name: cell["cliff"].get(name) for name in ("verdict", "drop", "low", "high")
        } | {"fell": cell.get("fell")},
        "captured": captured,
    }  # fmt: skip


def said_by(code: Path, out: Path, runs: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """`read_all` by the flowzoo of another directory."""
    done = subprocess.run(
        [sys.executable, __file__, "--read", str(out.resolve())],
        input=json.dumps(runs), env=os.environ | {"PYTHONPATH": str(code.resolve())},
        check=True, capture_output=True, text=True, cwd=code,
    )  # fmt: skip
    return json.loads(done.stdout)


def words(point: Point, said: dict[str, Any]) -> str:
    """What one version says about a point."""
    if point.runs == ("cell/*",):
        cell = said["cell"]
        low, high = (f"{100 * cell[name]:.1f}" for name in ("low", "high"))
        text = f"{cell['verdict']}, {100 * cell['drop']:.1f} points ({low} to {high})"
        fell = cell["fell"]
        return text + (f"; {fell['runs']} of {fell['of']} runs fell" if fell else "")
    if not point.runs:
        counts = said["captured"].items()
        return "found: " + ", ".join(f"{name} {n} of {REPEATS}" for name, n in counts)
    parts: list[str] = []
    for name in point.runs:
        for title, text in said["runs"][name]["findings"]:
            if re.search(point.titles, title):
                match = re.search(point.figures, text)
                quoted = (
                    " (".join(group.strip() for group in match.groups() if group) if match else ""
                )
                quoted += ")" * quoted.count("(") if "(" in quoted and ")" not in quoted else ""
                parts.append(f"{title}: {quoted}" if quoted else title)
    return "; ".join(parts).replace("\u00a0", " ") or "nothing"


def course(point: Point, said: dict[str, Any]) -> str:
    """The held-out accuracies of a point's runs, in per cent."""
    names = [
        n for n in RUNS if n in point.runs or (n.startswith("cell/") and "cell/*" in point.runs)
    ]
    return "; ".join(", ".join(map(str, said["runs"][name]["held_out"])) for name in names)


def main(options: Options) -> None:
    """Train, read, print and write."""
    train(options.out)
    runs = planted()
    before, now = (said_by(code, options.out, runs) for code in (options.before, ROOT))
    rows = [
        [
            f"{place}. {one.says}",
            course(one, now) or "simulated",
            words(one, before),
            words(one, now),
        ]
        for place, one in enumerate(POINTS, 1)
    ]
    record = {
        "command": "python benchmarks/ten_points.py --before ../before",
        "columns": ["point", "held-out accuracy, %", "before", "now"],
        "align": "|---|---|---|---|",
        "rows": rows,
        "runs": RUNS,
        "said": {"before": before, "now": now},
    }
    options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print("\n".join(" | ".join(row) for row in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        json.dump(read_all(Path(sys.argv[2]), json.load(sys.stdin)), sys.stdout)
    else:
        import tyro

        main(tyro.cli(Options))
