"""Share of healthy pages with a Problem, by level of the findings.

flowzoo matrix studies/unchanged.toml --out build/unchanged      # 160 runs in which nothing changes
python -m studies.false_alarms build/unchanged --sound build/diagnosis build/fresh build/unseen
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.intervals import share_interval
from flowzoo.baselines.report.reading import find_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import read_run
from flowzoo.files import write_json

DATA = Path(__file__).resolve().parents[1] / "docs" / "data"
TRUTHS = ("truth-diagnosis.json", "truth-diagnosis-fresh.json", "truth-diagnosis-unseen.json")


def finished(folder: Path) -> list[Path]:
    """The finished runs below a folder."""
    return [run for run in find_runs([folder]) if (run / "summary.json").is_file()]


def titles(run: Path) -> dict[str, list[str]]:
    """Titles of a page's findings by level."""
    by_level: dict[str, list[str]] = {}
    for finding in run_facts(read_run(run, run.name))["findings"]:
        by_level.setdefault(finding["level"], []).append(finding["title"])
    return by_level


def sound_runs() -> set[str]:
    """Names of the runs that are sound by the truths of `studies.diagnosis`."""
    names: set[str] = set()
    for file in TRUTHS:
        table = json.loads((DATA / file).read_text(encoding="utf-8"))
        names |= {row[0] for row in table["rows"] if not row[2]}
    return names


def main() -> None:
    """Count the pages and write docs/data/false-alarms.json."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("unchanged", type=Path, help="runs in which nothing changes")
    parser.add_argument("--sound", type=Path, nargs="+", required=True, help="folders of diagnosis")
    options = parser.parse_args()
    sound = sound_runs()
    groups = {
        "nothing changes": finished(options.unchanged),
        "sound": [run for at in options.sound for run in finished(at) if run.name in sound],
    }
    rows: list[list[Any]] = []
    alarms: list[list[str]] = []
    for name, runs in {**groups, "all": [run for of in groups.values() for run in of]}.items():
        pages = [(run, titles(run)) for run in runs]
        wrong = [(run, by_level["bad"]) for run, by_level in pages if by_level.get("bad")]
        yellow = sum(len(by_level.get("warn", ())) for _, by_level in pages)
        wilson = share_interval(len(wrong) / len(pages), len(pages))
        share = f"{100 * wilson.share:.1f} % ({100 * wilson.low:.1f} to {100 * wilson.high:.1f})"
        rows.append([name, str(len(pages)), str(len(wrong)), share, f"{yellow / len(pages):.2f}"])
        if name != "all":
            alarms += [[run.parent.name, run.name, *problems] for run, problems in wrong]
    columns = ["pages", "number", "with a Problem", "share (95 %)", "Warnings a page"]
    sources = "build/unchanged --sound build/diagnosis build/fresh build/unseen"
    command = f"python -m studies.false_alarms {sources}"
    table = {"command": command, "columns": columns, "rows": rows, "alarms": alarms}
    write_json(DATA / "false-alarms.json", table)
    print(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
