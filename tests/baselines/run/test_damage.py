"""Whatever happens to a file of a run: nothing that was measured is lost, and the run goes on.

Every case damages one file of a copy of a killed or finished run and repeats the command. Either
the run goes on by itself, or it stops with one line, changes nothing, and goes on after the remedy
that the line names. The metrics are then those of the run that nothing happened to.

`pytest -s tests/baselines/run/test_damage.py` prints the table of all cases.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch", reason="training needs flowzoo[train]")

from flowzoo.baselines.trainer import Trainer, train
from flowzoo.cli import main
from flowzoo.errors import FlowzooError, UsageError

pytestmark = pytest.mark.xdist_group("damage")  # they share runs

NEWEST = {"killed": "checkpoints/step-00000002", "finished": "checkpoints/step-00000004"}
IN_CHECKPOINT = (
    "checkpoint.json", "metrics.jsonl", "random.pt", "policies/shared/model.safetensors",
    "policies/shared/learner.pt", "policies/shared/config.json", "policies/shared/tokenizer.json",
    "policies/shared/tokenizer_config.json", "policies/shared/generation_config.json",
    "policies/shared/chat_template.jinja",
)  # fmt: skip


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


# -- damage -------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def delete(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def unreadable(path: Path) -> None:
    """A folder in its place (or a file in a folder's): nobody can read that, root neither."""
    was_folder = path.is_dir()
    delete(path)
    path.touch() if was_folder else path.mkdir()


HOW: dict[str, Callable[[Path], None]] = {
    "truncate": truncate, "delete": delete, "flip": flip, "unreadable": unreadable,
}  # fmt: skip


class Case(NamedTuple):
    state: str
    file: str
    damage: str
    stops: str = ""
    """A part of the line with which it stops; "": it goes on."""
    said: str = ""
    """A part of what is logged where it goes on."""


def cases() -> list[Case]:
    found: list[Case] = []
    for state, newest in NEWEST.items():
        torn = f"is set aside as torn-{Path(newest).name}, and the run goes on from the checkpoint"
        for place, name in enumerate(IN_CHECKPOINT):
            # Of the killed run every file once, of the finished one in two ways.
            turns = (1, 3) if state == "finished" else (0,)
            ways = [list(HOW)[(place + turn) % len(HOW)] for turn in turns]
            found += [Case(state, f"{newest}/{name}", damage, said=torn) for damage in ways]
        for damage in HOW:
            found.append(
                Case(state, "run.json", damage, said="with the settings of the checkpoint")
            )
            found.append(Case(state, "metrics.jsonl", damage, said="mended from the checkpoint"))
            found.append(Case(state, "transcripts/eval-000002.jsonl", damage))
            if damage != "unreadable":
                found.append(Case(state, "tensorboard/*", damage))
        found += [
            Case(state, "tensorboard", "unreadable", "tensorboard could not be written"),
            Case(state, "transcripts", "delete"),
            Case(state, "transcripts", "unreadable", "transcripts could not be written"),
            Case(state, ".lock", "delete"),
            Case(state, ".lock", "unreadable", ".lock could not be written"),
            Case(state, newest, "delete"),
            Case(state, "checkpoints", "delete", "without an intact checkpoint (metrics.jsonl has"),
            Case(state, "checkpoints/*/checkpoint.json", "truncate", "checkpoint.json is not JSON"),
            Case(state, "checkpoints/*/policies/shared/learner.pt", "flip", "another SHA-256"),
            Case(state, "checkpoints/*/random.pt", "unreadable", "instead of"),
        ]
    return found + [Case("finished", "summary.json", damage) for damage in HOW]


def usual(place: int, case: Case) -> bool:
    """Whether the case is in the default selection: of each kind some."""
    return place % 24 == 0 or (case.state == "killed" and "intact" in case.stops)


CASES = [
    pytest.param(
        case,
        id="-".join((case.state, case.file.replace("/", "_"), case.damage)),
        marks=() if usual(place, case) else pytest.mark.full,
    )
    for place, case in enumerate(cases())
]


def test_there_are_as_many_cases_as_were_asked_for() -> None:
    assert len(cases()) >= 80
    assert len({(case.state, case.file, case.damage) for case in cases()}) == len(cases())


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_run(
    case: Case,
    tmp_path: Path,
    caplog: Any,
    small_run: Callable[..., Any],
    small_runs: Path,
    repeated_rows: Callable[[Path], Any],
    what_was_measured: Callable[[Path], Any],
) -> None:
    root = tmp_path / "run"
    shutil.copytree(small_runs / case.state, root)
    for path in list(root.glob(case.file)):
        HOW[case.damage](path)
    measured, before = what_was_measured(root), contents(root)
    outcome = "goes on"
    if case.stops:
        with pytest.raises(FlowzooError) as stopped:
            train(small_run(root))
        outcome = str(stopped.value)
        assert case.stops in outcome
        if "could not be written" not in outcome:
            assert contents(root) == before, "a damaged run is left as it is"
        put_back(small_runs / case.state, root, case.file)
        measured |= what_was_measured(root)
    train(small_run(root))
    said = [record.getMessage() for record in caplog.records if record.name == "flowzoo"]
    row = " | ".join((case.state, case.file, case.damage, outcome, *said))
    sys.stdout.write(row.replace(str(root), "RUN") + "\n")
    assert all("\n" not in line for line in (*said, outcome))
    assert case.said in "; ".join(said)
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
    assert measured.lost_in(root) == 0
    summary = json.loads((root / "summary.json").read_text())
    assert summary["accuracy_after"] == repeated_rows(root)[-1]["eval/reward/mean"]
    assert not list((root / "checkpoints").glob("step-00000004.*"))
    assert (root / "checkpoints" / "step-00000004" / "checkpoint.json").is_file()


def put_back(whole: Path, root: Path, name: str) -> None:
    """The remedy that a line names: what is damaged comes back from a copy."""
    for path in list(whole.glob(name)):
        damaged = root / path.relative_to(whole)
        if damaged.exists():
            delete(damaged)
        if path.is_dir():
            shutil.copytree(path, damaged)
        else:
            shutil.copy2(path, damaged)


# -- the other remedy -----------------------------------------------------------------------------


def test_the_line_says_what_to_type_and_that_keeps_the_damaged_run(
    tmp_path: Path,
    capsys: Any,
    small_runs: Path,
    small_words: Callable[[Path], list[str]],
    repeated_rows: Callable[[Path], Any],
) -> None:
    root = tmp_path / "run"
    shutil.copytree(small_runs / "finished", root)
    for path in root.glob("checkpoints/*/random.pt"):
        truncate(path)
    before = contents(root)
    assert main(small_words(root)) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert said[0].startswith(f"error: {root} holds a run without an intact checkpoint (")
    assert f"with --restart, which keeps this run as {root}.1 and trains anew" in said[0]
    assert contents(root) == before
    assert main([*small_words(root), "--restart"]) == 0
    assert contents(tmp_path / "run.1") == before
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
    assert f"is kept as {root}.1" in capsys.readouterr().err


def test_restart_never_overwrites_and_takes_no_run_from_another_process(
    tmp_path: Path, small_run: Callable[..., Any], small_runs: Path
) -> None:
    root = tmp_path / "run"
    shutil.copytree(small_runs / "finished", root)
    (tmp_path / "run.1").write_text("mine")
    Trainer(small_run(root, lr=1e-3), restart=True).close()
    assert (tmp_path / "run.1").read_text() == "mine"
    assert contents(tmp_path / "run.2") == contents(small_runs / "finished")
    assert not (root / "metrics.jsonl").exists()
    training = Trainer(small_run(tmp_path / "run.2"))
    with pytest.raises(UsageError, match="another process is training"):
        Trainer(small_run(tmp_path / "run.2"), restart=True)
    training.close()
