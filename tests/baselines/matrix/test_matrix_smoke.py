"""The bundled smoke matrix, of one workflow: killed, resumed, and reported.

Its processes are forks that need not import torch again; `test_matrix.py` starts one as people do.
"""

import json
import sys
from importlib.resources import files
from typing import Any

import pytest

from flowzoo.baselines.matrix.file import load_matrix
from flowzoo.baselines.run.reading import like_path, read_run

WORKFLOWS = [
    f"{workflow}-math-paper-{sharing}-xs"
    for workflow in ("voting", "eval_opt")
    for sharing in ("shared", "isolated")
]
PLAYED = WORKFLOWS[2:]
CONTROL = "single-math-paper-xs"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernels other than Linux's")
@pytest.mark.full
def test_the_smoke_matrix_survives_a_kill_and_ends_in_tables_and_a_report(
    tmp_path, warm, kill_before
):
    runs, votes = len(PLAYED) + 1, len(PLAYED)
    out, matrix = tmp_path / "smoke", tmp_path / "smoke.toml"
    whole = (files("flowzoo.baselines.matrix.bundled") / "smoke.toml").read_text()
    assert 'workflow = ["voting", "eval_opt"]' in whole
    matrix.write_text(whole.replace('"voting", "eval_opt"', '"eval_opt"'))
    words = ["flowzoo.cli", "matrix", str(matrix), f"--out={out}", "--jobs=2", "--json"]
    victim = out / PLAYED[0] / "seed-0"
    kill_before(words, victim / "checkpoints" / "step-00000003")
    assert not (out / CONTROL / "seed-0" / "cell.toml").exists(), "it waits for its cells"

    done = warm(words).finish()
    assert done.returncode == 0, done.stderr
    assert f"[{runs + votes}/{runs + votes}] " in done.stderr
    table: dict[str, Any] = json.loads(done.stdout)
    assert [row["cell"] for row in table["cells"]] == [*PLAYED, CONTROL]
    first = out / PLAYED[0] / "seed-0"
    rows = [json.loads(line)["step"] for line in (first / "metrics.jsonl").open()]
    assert rows == list(range(5))
    assert len(read_run(first, "first").evaluations) >= 5

    tokens = {row["cell"]: row["tokens"] for row in table["cells"]}
    control = out / CONTROL / "seed-0"
    most = max(tokens[name] for name in PLAYED)
    assert f"token_budget = {most}\n" in (control / "cell.toml").read_text()
    assert tokens[CONTROL] >= most
    equal = [(row["other"], row["equal"]) for row in table["controls"]]
    assert sorted(equal) == sorted(
        (name, what) for name in PLAYED
        for what in ("training tokens", "calls of an answer", "tokens of an answer")
    )  # fmt: skip
    assert all(like_path(control, out / name / "seed-0").exists() for name in PLAYED)
    compared = {(row["one"], row["other"]): row for row in table["parity"]}
    assert set(compared) == {
        *zip(PLAYED[::2], PLAYED[1::2], strict=True),
        *((CONTROL, name) for name in PLAYED),
    }
    assert all(compared[CONTROL, name]["ratios"][0] >= 1 for name in PLAYED)

    planned = warm([*words[:-1], "--dry-run"]).finish().stdout
    assert f"{runs} cells, {runs} runs, {runs} finished" in planned
    assert f"{votes} evaluations of controls at equal inference, {votes} finished." in planned
    page = tmp_path / "report.html"
    reported = warm(["flowzoo.cli", "report", str(out), f"--out={page}"]).finish()
    assert reported.returncode == 0, reported.stderr
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in (*PLAYED, CONTROL))
    assert len(list((tmp_path / "report-runs").glob("*.html"))) == runs


def test_the_smoke_matrix_has_the_pilots_shape():
    smoke, pilot = load_matrix("smoke"), load_matrix("pilot")
    names = {cell.name for cell in pilot.cells}
    assert {cell.name for cell in smoke.cells} <= names
    assert [cell.name for cell in smoke.cells] == [*WORKFLOWS, CONTROL]
