"""The claims of arXiv 2605.24202 on the runs of one or more matrices.

    python -m studies.paper runs/pilot runs/workflows --out docs/pilot.html
    python -m studies.paper runs/map

Writes the page of `flowzoo report --overview` with the sections of the study, and prints where a
team pays as Markdown.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowzoo.arguments import read_arguments
from flowzoo.baselines.report.cells import Notes, group_cells
from flowzoo.baselines.report.comparisons import MIN_SEEDS
from flowzoo.baselines.report.failures import read_failure_modes
from flowzoo.baselines.report.html import render, stamp
from flowzoo.baselines.report.matrix_facts import matrix_facts
from flowzoo.baselines.report.reading import read_runs
from flowzoo.baselines.report.run_facts import run_facts
from flowzoo.baselines.run.reading import RunData
from flowzoo.errors import FlowzooError
from flowzoo.files import replace_text
from studies.paper.claims import cell_amplification, paper_claims
from studies.paper.sharing import claimable_pairs, sharing_finding, sharing_rows
from studies.paper.team_map import team_findings, team_lines, team_map


@dataclass(frozen=True, slots=True)
class Options:
    """Judge the claims on runs."""

    runs: tuple[Path, ...] = field(metadata={"positional": "RUNS [RUNS ...]"})
    """Run directories, or directories that hold some."""
    out: Path = Path("report.html")
    """The HTML file."""


def study_facts(
    runs: Sequence[RunData], notes: Notes, controls: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Facts of the study's sections.

    Args:
        runs: all runs.
        notes: facts of the runs by name.
        controls: rows of `against_controls`.
    """
    cells = group_cells(runs)
    pairs = claimable_pairs(cells) if len(cells) > 1 else []
    amplified = cell_amplification(cells)
    claims = paper_claims(pairs, cells, notes, amplified) if len(cells) > 1 else []
    return {
        "claims": [claim._asdict() for claim in claims],
        "amplified": [role._asdict() for role in amplified],
        "teams": team_map(controls),
        "sharing": sharing_rows(cells, pairs, notes),
        "fewest": MIN_SEEDS,
    }


def study_page(runs: Sequence[RunData], paths: Sequence[Path]) -> dict[str, Any]:
    """Facts of the matrix's page with those of the study under `study`."""
    notes = {run.name: run_facts(run) for run in runs}
    matrix = matrix_facts(runs, {}, notes, read_failure_modes(paths))
    study = study_facts(runs, notes, matrix["controls"])
    findings = [*team_findings(study["teams"]), sharing_finding(study["sharing"])]
    added = [finding.as_facts() for finding in findings]
    return {**matrix, "findings": [*matrix["findings"], *added], "study": study}


def main() -> None:
    """Write the page and print the table of teams."""
    options = read_arguments(Options)
    try:
        runs = read_runs(options.runs)
        matrix = study_page(runs, options.runs)
    except FlowzooError as error:
        raise SystemExit(f"error: {error}") from error
    title = f"{options.runs[0].resolve().name}: {len(runs)} runs"
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
    replace_text(options.out, render(title, stamp(title, matrix=matrix), None, script))
    sys.stdout.write("\n".join(team_lines(matrix["study"]["teams"])) + f"\n\n{options.out}\n")


if __name__ == "__main__":
    main()
