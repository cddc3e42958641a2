"""The bundled smoke matrix: killed, resumed, and reported.

Its processes are forks that need not import torch again; `test_matrix.py` starts one as people do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the trainer needs flowzoo[train]")

from flowzoo.baselines import matrix
from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.run.reading import like_path, read_run

WORKFLOWS = [
    f"{workflow}-math-paper-{sharing}-xs"
    for workflow in ("voting", "eval_opt")
    for sharing in ("shared", "isolated")
]
CONTROL = "single-math-paper-xs"


Warm = Callable[..., Any]

SMALLER = {
    'workflow = ["voting", "eval_opt"]': 'workflow = ["voting"]',
    "\neval_every = 1": "\neval_every = 2", "eval_problems = 20": "eval_problems = 6",
    "problems = 16": "problems = 8",
}  # fmt: skip


def smoke(folder: Path, whole: bool) -> str:
    """The bundled matrix, or its first cells and the control, with fewer evaluations."""
    if whole:
        return "smoke"
    text = (files(matrix) / "bundled" / "smoke.toml").read_text(encoding="utf-8")
    for old, new in SMALLER.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "small.toml").write_text(text, encoding="utf-8")
    return str(folder / "small.toml")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels other than Linux's")
@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.full)], ids=["smaller", "bundled"]
)
def test_the_smoke_matrix_survives_a_kill_and_ends_in_tables_and_a_report(
    whole: bool, tmp_path: Path, warm: Warm, kill_before: Callable[[list[str], Path], None]
) -> None:
    workflows = WORKFLOWS if whole else WORKFLOWS[:2]
    runs, votes = len(workflows) + 1, len(workflows)
    out = tmp_path / "smoke"
    words = ["flowzoo.cli", "matrix", smoke(tmp_path, whole), f"--out={out}", "--jobs=2", "--json"]
    victim = out / WORKFLOWS[0] / "seed-0"
    kill_before(words, victim / "checkpoints" / "step-00000003")
    assert not (out / CONTROL / "seed-0" / "cell.toml").exists(), "it waits for its cells"

    done = warm(words).finish()
    assert done.returncode == 0, done.stderr
    assert f"[{runs + votes}/{runs + votes}] " in done.stderr
    table: dict[str, Any] = json.loads(done.stdout)
    assert [row["cell"] for row in table["cells"]] == [*workflows, CONTROL]
    first = out / workflows[0] / "seed-0"
    rows = [json.loads(line)["step"] for line in (first / "metrics.jsonl").open()]
    assert rows == list(range(5))
    assert len(read_run(first, "first").evaluations) >= (5 if whole else 3)

    tokens = {row["cell"]: row["tokens"] for row in table["cells"]}
    control = out / CONTROL / "seed-0"
    most = max(tokens[name] for name in workflows)
    assert f"token_budget = {most}\n" in (control / "cell.toml").read_text()
    assert tokens[CONTROL] >= most
    equal = [(row["other"], row["equal"]) for row in table["controls"]]
    assert sorted(equal) == sorted(
        (name, what) for name in workflows
        for what in ("training tokens", "calls of an answer", "tokens of an answer")
    )  # fmt: skip
    assert all(like_path(control, out / name / "seed-0").exists() for name in workflows)
    compared = {(row["one"], row["other"]): row for row in table["parity"]}
    assert set(compared) == {
        *zip(workflows[::2], workflows[1::2], strict=True),
        *((CONTROL, name) for name in workflows),
    }  # fmt: skip
    assert all(compared[CONTROL, name]["ratios"][0] >= 1 for name in workflows)

    planned = warm([*words[:-1], "--dry-run"]).finish().stdout
    assert f"{runs} cells, {runs} runs, {runs} finished" in planned
    assert f"{votes} evaluations of controls at equal inference, {votes} finished." in planned
    page = tmp_path / "report.html"
    reported = warm(["flowzoo.cli", "report", str(out), f"--out={page}"]).finish()
    assert reported.returncode == 0, reported.stderr
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in (*workflows, CONTROL))
    assert len(list((tmp_path / "report-runs").glob("*.html"))) == runs


def test_the_smoke_matrix_has_the_pilots_shape() -> None:
    smoke, pilot = load_matrix("smoke"), load_matrix("pilot")
    names = {cell.name for cell in pilot.cells}
    assert {cell.name for cell in smoke.cells} <= names
    assert [cell.name for cell in smoke.cells] == [*WORKFLOWS, CONTROL]
