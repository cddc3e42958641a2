"""Ten points where the diagnostics missed or misled: what two versions say of the same runs.

    git worktree add --detach ../before b0eb734
    OMP_NUM_THREADS=1 python benchmarks/ten_points.py --before ../before

Trains the runs of `RUNS` that are not in --out yet (5 CPU minutes), has both versions read the same
directories, prints the table and writes it to --json, with the findings that it quotes in full. No
command is known that shows a capture, or a last evaluation below the start after a better one:
point 7 and a part of point 10 take simulated runs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
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
}
"""By name, what `flowzoo train` takes; 160 problems every two steps where nothing else is said."""


class Point(NamedTuple):
    """One of the ten."""

    says: str
    """What was wrong."""
    runs: tuple[str, ...]
    titles: str
    """Pattern of the titles of findings that are about it."""
    figures: str = r"minus end is ([\d.]+ points \(95 % interval [^,)]+)"
    """Pattern of what is quoted of their texts, the groups of its first match."""


POINTS = (
    Point("1. a fall of 50 points", ("twelve",), "cliff|falling|held-out problems"),
    Point("2. a run that rises", ("rises",), "cliff|fall|lost|shows|stands out"),
    Point(
        "3. checking roles that collapse",
        ("evaluator", "verifier"),
        "collapsed|worse than|cost the most|shows|stands out",
        r"would change by: (\w+ [+−][\d.]+ points)|adds ([+−][\d.]+ points)|"
        r"((?:accepts|calls enough) [\d.]+ % \()[^;]*; ([\d.]+ % at the best)",
    ),
    Point("4. a fall in progress", ("falling",), "cliff|fall"),
    Point(
        "5. three evaluations in 40 steps",
        ("coarse",),
        "cliff|evaluations",
        r"(mean training reward was [\d.]+\s%)|(repeat the run with --eval-every \d+)",
    ),
    Point("6. seeds that fall at different times", ("cell",), ""),
    Point("7. capture by 6 or 12 voters, or from a first share of 0.84", (), ""),
    Point("8. spikes of a role whose samples are alike", ("verifier",), "spikes", "(at .* steps)"),
    Point("9. how far an iteration moved", ("falling",), "updates|moved", "moved (.*?) nats"),
    Point("10. words for a destroyed policy", ("coarse",), "signal", r"taught nothing: ([^.]*)"),
    Point(
        "10. words for a last evaluation below the start",
        ("planted",),
        "gain|below",
        r"([+−][\d.]+ points \(95 % interval [^,)]+)",
    ),
)
PLANTED: dict[str, dict[str, Any]] = {
    "6 voters": {"excess": 0.12, "voters": 6},
    "12 voters": {"excess": 0.065, "voters": 12},
    "3 voters, first share 0.84": {"excess": 0.18, "first": 0.84},
}
"""As the truth tables plant a capture; `first` is the share of the mass at the first step."""
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
    """Runs with a capture, as plain values."""
    import numpy as np

    from flowzoo.baselines.diagnostics.simulation import simulate, simulate_capture

    found: dict[str, list[list[Any]]] = {}
    scores = simulate([0.60, 0.66, 0.64, 0.62, 0.44], 160, np.random.default_rng(0))
    found["planted"] = [scores.tolist()]
    for name, what in PLANTED.items():
        rng = np.random.default_rng(len(found))
        runs = found[name] = []
        for _ in range(REPEATS):
            run = simulate_capture(what["excess"], 0.8, rng, voters=what.get("voters", 3))
            if "first" in what:
                run.mass["generator"][0] = what["first"]
            replies = [{k: v.tolist() for k, v in one.items()} for one in (run.before, run.after)]
            runs.append([run.mass, run.tokens, run.steps, *replies])
    return found


def read_all(out: Path, runs: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """What the code that Python finds says of everything; runs in a process of its own."""
    import numpy as np

    from flowzoo.baselines.diagnostics.capture import find_captures
    from flowzoo.baselines.report.accuracy import gain_facts
    from flowzoo.baselines.report.cells import cell_facts, group_cells
    from flowzoo.baselines.report.findings import gain_finding
    from flowzoo.baselines.report.reading import read_runs
    from flowzoo.baselines.report.run_facts import run_facts

    facts = {name: run_facts(read_runs([out / name])[0]) for name in RUNS}
    members = read_runs([out / "cell"])
    cell = cell_facts(group_cells(members)[0], {run.name: run_facts(run) for run in members})
    planted, captured = np.array(runs.pop("planted")[0]), {}
    for name, several in runs.items():
        found = [
            find_captures(*one[:3], *({role: np.array(rows) for role, rows in part.items()}
                                      for part in one[3:]))
            for one in several
        ]  # fmt: skip
        captured[name] = sum(any(pair.captured for pair in pairs) for pairs in found)
    drawn = SimpleNamespace(scores=planted, steps=[0, 2, 4, 6, 8])
    gain = gain_finding(gain_facts(drawn))  # type: ignore[arg-type]
    said = {
        name: {
            "held_out": [round(100 * level) for _, level, *_ in fact["held_out"]],
            "findings": [[one["title"], one["text"]] for one in fact["findings"]],
            "moved": fact.get("distances", []),
        }
        for name, fact in facts.items()
    }
    levels = [round(100 * float(level)) for level in planted.mean(axis=1)]
    said["planted"] = {"held_out": levels, "findings": [[gain.title, gain.text]], "moved": []}
    verdict = {name: cell["cliff"].get(name) for name in ("verdict", "drop", "low", "high")}
    return {"runs": said, "cell": verdict | {"fell": cell.get("fell")}, "captured": captured}


def said_by(code: Path, out: Path, runs: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """`read_all` by the flowzoo of another directory."""
    done = subprocess.run(
        [sys.executable, __file__, "--read", str(out.resolve())],
        input=json.dumps(runs), env=os.environ | {"PYTHONPATH": str(code.resolve())},
        check=True, capture_output=True, text=True, cwd=code,
    )  # fmt: skip
    return json.loads(done.stdout)


def quoted(point: Point, said: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Titles and texts of the findings about a point."""
    for name in point.runs:
        for title, text in said["runs"].get(name, {"findings": []})["findings"]:
            if re.search(point.titles, title):
                yield title, text.replace("\u00a0", " ")


def words(point: Point, said: dict[str, Any]) -> str:
    """What one version says about a point."""
    if point.runs == ("cell",):
        cell = said["cell"]
        low, high = (f"{100 * cell[name]:.1f}" for name in ("low", "high"))
        text = f"{cell['verdict']}: {100 * cell['drop']:.1f} points ({low} to {high})"
        fell = cell["fell"]
        return text + (f"; of the runs by themselves {fell['runs']} fell" if fell else "")
    if not point.runs:
        counts = said["captured"].items()
        return "found: " + ", ".join(f"{name} {n} of {REPEATS}" for name, n in counts)
    parts: list[str] = []
    for title, text in quoted(point, said):
        match = re.search(point.figures, text)
        groups = [group.strip() for group in match.groups() if group] if match else []
        figure = " ".join(groups).replace("( ", "(").replace("95 % interval ", "")
        figure += ")" * (figure.count("(") - figure.count(")"))
        parts.append(f"{title}: {figure}" if figure else title)
    if point.titles.endswith("moved"):
        moved = [one for name in point.runs for one in said["runs"][name]["moved"]]
        parts += [
            f"{one['policy']} by {one['median']:.2g} nats a token (median), "
            f"{one['largest']:.2g} at step {one['step']}"
            for one in moved
        ]
    return "; ".join(parts) or "nothing"


def course(point: Point, said: dict[str, Any]) -> str:
    """The held-out accuracies of a point's runs, in per cent."""
    names = [name for name in said["runs"] if name.split("/")[0] in point.runs]
    return "; ".join(", ".join(map(str, said["runs"][name]["held_out"])) for name in names)


def main(options: Options) -> None:
    """Train, read, print and write."""
    train(options.out)
    runs = planted()
    before, now = (said_by(code, options.out, runs) for code in (options.before, ROOT))
    rows = [
        [
            one.says,
            course(one, now) or "simulated",
            words(one, before),
            words(one, now),
        ]
        for one in POINTS
    ]
    record = {
        "command": "python benchmarks/ten_points.py --before ../before",
        "columns": ["point", "held-out accuracy, %", "before", "now"],
        "align": "|---|---|---|---|",
        "rows": rows,
        "runs": RUNS,
        "quoted": {
            f"{one.says}: {name}": dict(quoted(one, said))
            for one in POINTS
            for name, said in (("before", before), ("now", now))
        },
    }
    options.json.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print("\n".join(" | ".join(row) for row in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        json.dump(read_all(Path(sys.argv[2]), json.load(sys.stdin)), sys.stdout)
    else:
        import tyro

        main(tyro.cli(Options))
