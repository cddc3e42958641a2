"""The bundled smoke matrix, run as people run matrices: killed, resumed, and reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.run.reading import like_path, read_run

LIMIT_S = 600
"""For every part; all of it takes about two minutes on two cores without other work."""
WORKFLOWS = [
    f"{workflow}-math-paper-{sharing}-xs"
    for workflow in ("voting", "eval_opt")
    for sharing in ("shared", "isolated")
]
CONTROL = "single-math-paper-xs"


def flowzoo(*words: str) -> list[str]:
    """A command line."""
    return [sys.executable, "-m", "flowzoo.cli", *words]


def environment() -> dict[str, str]:
    """One thread a process."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def dry_run(out: Path) -> str:
    """What `--dry-run` prints."""
    words = flowzoo("matrix", "smoke", f"--out={out}", "--dry-run")
    return subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=LIMIT_S, env=environment()
    ).stdout


@pytest.mark.serial
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels other than Linux's")
def test_the_smoke_matrix_survives_a_kill_and_ends_in_tables_and_a_report(
    tmp_path: Path, kill_before: Callable[[list[str], Path], None]
) -> None:
    out = tmp_path / "smoke"
    words = flowzoo("matrix", "smoke", f"--out={out}", "--jobs=2", "--json")
    victim = out / WORKFLOWS[0] / "seed-0"
    kill_before(words, victim / "checkpoints" / "step-00000004")
    assert not (out / CONTROL / "seed-0" / "cell.toml").exists(), "it waits for its cells"

    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, env=environment())
    assert done.returncode == 0, done.stderr
    assert "[9/9] " in done.stderr, "five runs and four votes"
    table: dict[str, Any] = json.loads(done.stdout)
    assert [row["cell"] for row in table["cells"]] == [*WORKFLOWS, CONTROL]
    first = out / WORKFLOWS[0] / "seed-0"
    rows = [json.loads(line)["step"] for line in (first / "metrics.jsonl").open()]
    assert rows == list(range(9))
    assert len(read_run(first, "first").evaluations) >= 5

    tokens = {row["cell"]: row["tokens"] for row in table["cells"]}
    control = out / CONTROL / "seed-0"
    most = max(tokens[name] for name in WORKFLOWS)
    assert f"token_budget = {most}\n" in (control / "cell.toml").read_text()
    assert tokens[CONTROL] >= most
    equal = [(row["other"], row["equal"]) for row in table["controls"]]
    assert sorted(equal) == sorted(
        (name, what) for name in WORKFLOWS
        for what in ("training tokens", "calls of an answer", "tokens of an answer")
    )  # fmt: skip
    assert all(like_path(control, out / name / "seed-0").exists() for name in WORKFLOWS)
    compared = {(row["one"], row["other"]): row for row in table["parity"]}
    assert set(compared) == {
        (WORKFLOWS[0], WORKFLOWS[1]), (WORKFLOWS[2], WORKFLOWS[3]),
        *((CONTROL, name) for name in WORKFLOWS),
    }  # fmt: skip
    assert all(compared[CONTROL, name]["ratios"][0] >= 1 for name in WORKFLOWS)

    planned = dry_run(out)
    assert "5 cells, 5 runs, 5 finished" in planned
    assert "4 evaluations of controls at equal inference, 4 finished." in planned
    page = tmp_path / "report.html"
    subprocess.run(
        flowzoo("report", str(out), f"--out={page}"),
        check=True, capture_output=True, timeout=LIMIT_S, env=environment(),
    )  # fmt: skip
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in (*WORKFLOWS, CONTROL))
    assert len(list((tmp_path / "report-runs").glob("*.html"))) == 5


def test_the_smoke_matrix_has_the_pilots_shape() -> None:
    smoke, pilot = load_matrix("smoke"), load_matrix("pilot")
    names = {cell.name for cell in pilot.cells}
    assert {cell.name for cell in smoke.cells} <= names
    assert [cell.name for cell in smoke.cells] == [*WORKFLOWS, CONTROL]
