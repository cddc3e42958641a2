"""Whatever happens to a file of a run, or to its disk: nothing is lost, and the run goes on."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from flowzoo.baselines.learner.saved import save_tensors
from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.sft.sources import ScriptedPlay, read_source
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.cli import main
from flowzoo.commands.shared import quiet_transformers
from flowzoo.envs import make_workflow
from flowzoo.errors import DataError, FlowzooError, SaveError, UsageError

pytestmark = pytest.mark.xdist_group("damage")


BRIEF = {"steps": 2, "checkpoint_every": 1, "eval_every": 1}
NEWEST = {"killed": "checkpoints/step-00000001", "finished": "checkpoints/step-00000002"}
IN_CHECKPOINT = (
    "checkpoint.json", "random.pt", "policies/shared/model.safetensors",
    "policies/shared/learner.pt", "policies/shared/config.json", "policies/shared/tokenizer.json",
    "policies/shared/tokenizer_config.json", "policies/shared/generation_config.json",
    "policies/shared/chat_template.jinja",
)  # fmt: skip


REPAIRED = {
    "run.json": "with the settings of the checkpoint",
    "metrics.jsonl": "repaired from its copy",
    "transcripts/eval-000001.jsonl": "the run continues without",
    "digests.jsonl": "repaired from its copy",
}


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
    opened: int | None = None
    """It is only opened, and stands at this step: what it goes on from is that of another case."""


def cases() -> list[Case]:
    found: list[Case] = []
    for state, newest in NEWEST.items():
        torn = (
            f"is set aside as torn-{Path(newest).name}, and the run continues from the checkpoint"
        )
        before = int(newest[-1]) - 1
        for place, name in enumerate(IN_CHECKPOINT):
            # Of the killed run every file once, of the finished one in two ways.
            turns = (1, 3) if state == "finished" else (0,)
            ways = [list(HOW)[(place + turn) % len(HOW)] for turn in turns]
            for damage in ways:
                opened = before if place or damage != ways[0] else None
                found.append(Case(state, f"{newest}/{name}", damage, said=torn, opened=opened))
        for damage in HOW:
            for name, said in REPAIRED.items():
                found.append(Case(state, name, damage, said=said))
            for name in ("metrics.jsonl", "digests.jsonl"):
                copy, anew = f"checkpoints/{name}", f"{name} is damaged and was written again from"
                found.append(Case(state, copy, damage, said=anew, opened=int(newest[-1])))
            if damage != "unreadable":
                found.append(Case(state, "tensorboard/*", damage))
        found += [
            Case(state, "tensorboard", "unreadable", "tensorboard could not be written"),
            Case(state, "transcripts", "delete", said="damaged or missing; the run continues"),
            Case(state, "transcripts", "unreadable", "transcripts could not be written"),
            Case(state, ".lock", "delete"),
            Case(state, ".lock", "unreadable", "move away what is in its place"),
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


def test_there_are_as_many_cases_as_were_asked_for():
    assert len(cases()) >= 80
    assert len({(case.state, case.file, case.damage) for case in cases()}) == len(cases())


class _Dying(Trainer):
    """Ends when the row of step 2 is written and its checkpoint is not."""

    def save(self, step: int, score: float | None) -> None:
        if step == 2:
            raise InterruptedError
        super().save(step, score)


@pytest.fixture(scope="module")
def brief_run(small_run: Callable[..., Any]) -> Callable[..., Any]:
    """`brief_run(root, **changes)`: the settings of the small run, but of two steps."""
    return lambda root, **changes: small_run(root, **(BRIEF | changes))


@pytest.fixture(scope="module")
def brief_runs(tmp_path_factory: pytest.TempPathFactory, brief_run: Callable[..., Any]) -> Path:
    """A folder with `finished` and `killed`, only to be copied.

    The latter has row and transcripts of step 2, and the checkpoints of steps 0 and 1.
    """
    root = tmp_path_factory.mktemp("brief")
    train(brief_run(root / "finished"))
    with pytest.raises(InterruptedError):
        _Dying(start_run(brief_run(root / "killed"))).train()
    learned = json.loads((root / "finished/summary.json").read_text())["updates"]
    assert learned == 2, "no state of an optimizer could be damaged"
    return root


def weights(root: Path) -> bytes:
    return (root / NEWEST["finished"] / "policies/shared/model.safetensors").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_run(
    case, tmp_path, caplog, brief_run, brief_runs, repeated_rows, what_was_measured
):
    root, whole = tmp_path / "run", brief_runs / "finished"
    shutil.copytree(brief_runs / case.state, root)
    for path in list(root.glob(case.file)):
        HOW[case.damage](path)
    measured, before = what_was_measured(root), contents(root)
    outcome = "goes on"
    if case.stops:
        with pytest.raises(FlowzooError) as stopped:
            train(brief_run(root))
        outcome = str(stopped.value)
        assert case.stops in outcome
        if "could not be written" not in outcome:
            assert contents(root) == before, "a damaged run is left as it is"
        put_back(brief_runs / case.state, root, case.file)
        measured |= what_was_measured(root)
    trainer = Trainer(start_run(brief_run(root)))
    trainer.close() if case.opened is not None else trainer.train()
    said = [record.getMessage() for record in caplog.records if record.name == "flowzoo"]
    row = " | ".join((case.state, case.file, case.damage, outcome, *said))
    sys.stdout.write(row.replace(str(root), "RUN") + "\n")
    assert all("\n" not in line for line in (*said, outcome))
    assert case.said in "; ".join(said)
    assert measured.lost_in(root) == 0
    if case.opened is not None:
        assert trainer.run.state.step == case.opened
        assert repeated_rows(root) == repeated_rows(whole)[: case.opened + 1]
        if case.file.startswith("checkpoints/step-"):
            check_torn(root, brief_runs, case)
        return
    assert repeated_rows(root) == repeated_rows(whole)
    assert weights(root) == weights(whole)
    summary = json.loads((root / "summary.json").read_text())
    assert summary["accuracy_after"] == repeated_rows(root)[-1]["eval/reward/mean"]
    assert not list((root / "checkpoints").glob("step-00000002.*"))
    assert (root / "checkpoints" / "step-00000002" / "checkpoint.json").is_file()
    for name in ("metrics.jsonl", "digests.jsonl"):
        assert (root / "checkpoints" / name).read_bytes() == (root / name).read_bytes()


def check_torn(root: Path, runs: Path, case: Case) -> None:
    """The checkpoint before the damaged one is what it was, and that one is set aside."""
    rest = f"checkpoints/step-{case.opened:08}"
    assert contents(root / rest) == contents(runs / case.state / rest)
    torn = root / NEWEST[case.state]
    assert not torn.exists(), "its step could not be saved again"
    assert torn.with_name(f"torn-{torn.name}").is_dir()


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
    tmp_path, capsys, brief_runs, small_words, repeated_rows
):
    root = tmp_path / "run"
    shutil.copytree(brief_runs / "finished", root)
    for path in root.glob("checkpoints/*/random.pt"):
        truncate(path)
    before = contents(root)
    assert main(small_words(root, **BRIEF)) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert said[0].startswith(f"error: {root} holds a run without an intact checkpoint (")
    assert f"with --restart, which keeps this run as {root}.1 and trains anew" in said[0]
    assert contents(root) == before
    assert main([*small_words(root, **BRIEF), "--restart"]) == 0
    assert contents(tmp_path / "run.1") == before
    assert repeated_rows(root) == repeated_rows(brief_runs / "finished")
    assert f"is kept as {root}.1" in capsys.readouterr().err


def test_restart_never_overwrites_and_takes_no_run_from_another_process(
    tmp_path, brief_run, brief_runs
):
    root = tmp_path / "run"
    shutil.copytree(brief_runs / "finished", root)
    (tmp_path / "run.1").write_text("mine")
    Trainer(start_run(brief_run(root, lr=1e-3), restart=True)).close()
    assert (tmp_path / "run.1").read_text() == "mine"
    assert contents(tmp_path / "run.2") == contents(brief_runs / "finished")
    assert not (root / "metrics.jsonl").exists()
    training = Trainer(start_run(brief_run(tmp_path / "run.2")))
    with pytest.raises(UsageError, match="another process is training"):
        Trainer(start_run(brief_run(tmp_path / "run.2"), restart=True))
    training.close()


def test_metrics_and_their_copy_that_are_both_damaged_stop_the_run_which_is_left_as_it_is(
    tmp_path, brief_run, brief_runs
):
    root = tmp_path / "run"
    shutil.copytree(brief_runs / "killed", root)
    for path in (root / "metrics.jsonl", root / "checkpoints" / "metrics.jsonl"):
        flip(path)
    before = contents(root)
    with pytest.raises(DataError, match="and so is its copy: restore it from a copy, or repeat"):
        Trainer(start_run(brief_run(root)))
    assert contents(root) == before


@pytest.mark.parametrize("damage", HOW)
def test_damaged_transcripts_are_not_read(damage, tmp_path, brief_runs, caplog, capsys):
    """A report leaves them out and says so; a warm start and a data set refuse them."""
    root = tmp_path / "run"
    shutil.copytree(brief_runs / "finished", root)
    assert set(read_run(root, "run").transcript_files("train")) == {1, 2}
    HOW[damage](root / "transcripts" / "train-000001.jsonl")
    assert set(read_run(root, "run").transcript_files("train")) == {2}
    workflow = make_workflow("single")
    if damage == "delete":  # who takes a file away knows it
        assert read_source(str(root), workflow, ScriptedPlay("train", 1, 1, 0))
        return
    assert "train-000001.jsonl" in caplog.text
    assert "it is left out" in caplog.text
    with pytest.raises(DataError, match=r"train-000001\.jsonl.*Put it back from a copy"):
        read_source(str(root), workflow, ScriptedPlay("train", 1, 1, 0))
    assert main(["dataset", str(root), "--out", str(tmp_path / "data")]) == 2
    assert "train-000001.jsonl" in capsys.readouterr().err


def test_a_checkpoint_does_not_grow_with_the_run(brief_runs):
    root = brief_runs / "finished"
    assert not list(root.glob("checkpoints/step-*/metrics.jsonl"))
    assert (root / "checkpoints/metrics.jsonl").read_bytes() == (
        root / "metrics.jsonl"
    ).read_bytes()
    sizes = [path.stat().st_size for path in root.glob("checkpoints/step-*/checkpoint.json")]
    assert max(sizes) - min(sizes) < 200, "numbers of other lengths"


FULL = [
    ("killed", 100, "aside/1/metrics.jsonl could"),  # the row that is done again
    pytest.param("killed", 3000, "run/metrics.jsonl could", marks=pytest.mark.full),  # the others
    pytest.param("killed", 8000, "transcripts/train-000003.jsonl could", marks=pytest.mark.full),
    ("killed", 9800, "run/metrics.jsonl could"),  # in the middle of a new row
    pytest.param("killed", 40_000, "the checkpoint of step 4 could", marks=pytest.mark.full),
    pytest.param("killed", 1_500_000, "the checkpoint of step 4 could", marks=pytest.mark.full),
    pytest.param("finished", 100, "run.json could", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("state", "size", "file"), FULL)
def test_a_disk_that_is_full(
    state, size, file, tmp_path, small_run, small_runs, repeated_rows, what_was_measured,
    largest_file,
):  # fmt: skip
    """The run stops with one line that names the file, and goes on when there is room again."""
    root = tmp_path / "run"
    shutil.copytree(small_runs / state, root)
    measured = what_was_measured(root)
    quiet_transformers()  # its bars would go to a file, which may not grow either
    with largest_file(size), pytest.raises(SaveError) as stopped:
        train(small_run(root))
    said = str(stopped.value)
    assert file in said
    assert "\n" not in said
    assert "inline_container" not in said, "of torch"
    measured |= what_was_measured(root)
    train(small_run(root))
    assert measured.lost_in(root) == 0
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")


def test_torch_is_made_to_say_why_a_file_could_not_be_written(tmp_path, largest_file):
    value = {"steps": torch.zeros(50_000), "inner": {"steps": 1}}
    with largest_file(1000), pytest.raises(OSError, match="File too large") as stopped:
        save_tensors(value, tmp_path / "learner.pt")
    assert isinstance(stopped.value.__cause__, RuntimeError), "what torch made of it"


def test_equal_states_have_equal_bytes(tmp_path):
    """As a learner's after a resumption, whose texts are other objects than the code's."""
    paths = [tmp_path / name for name in ("a.pt", "b.pt")]
    for path, name in zip(paths, ("steps", "".join(("st", "eps"))), strict=True):
        save_tensors({"steps": 1, "inner": [{name: torch.ones(3)}, (name,)]}, path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    assert torch.load(paths[0], weights_only=True)["inner"][1] == ("steps",)


def test_death_before_the_first_checkpoint(
    tmp_path, small_run, small_runs, repeated_rows, what_was_measured
):
    """The one moment at which a run with metrics begins anew by itself, keeping them."""
    root = tmp_path / "run"
    shutil.copytree(small_runs / "killed", root)
    (root / "checkpoints" / "step-00000000").rename(root / "checkpoints" / ".partial-step-00000000")
    shutil.rmtree(root / "checkpoints" / "step-00000002")
    for path in root.glob("transcripts/*[1-9].jsonl"):
        path.unlink()
    metrics = root / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes().splitlines(keepends=True)[0])
    measured = what_was_measured(root)
    train(small_run(root))
    assert measured.lost_in(root) == 0
    assert (root / "aside" / "1" / "transcripts" / "eval-000000.jsonl").is_file()
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")


class Killed(BaseException):
    """Stands for a process that dies."""


def damage(root: Path) -> None:
    """A newest checkpoint, metrics, summary and record, none of which is whole."""
    os.truncate(root / "checkpoints/step-00000004/random.pt", 10)
    for name in ("metrics.jsonl", "summary.json", "run.json"):
        os.truncate(root / name, 700)


@pytest.mark.full
def test_death_at_any_moment_of_mending(
    tmp_path, monkeypatch, small_run, small_runs, repeated_rows, what_was_measured
):
    """One process after the other dies, each a call further, until one comes through."""
    root = tmp_path / "run"
    shutil.copytree(small_runs / "finished", root)
    damage(root)
    measured = what_was_measured(root)
    left = 0

    def deadly(function):
        def wrapped(*args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(*args, **kwargs)

        return wrapped

    deaths = 0
    for limit in range(40):
        left = limit
        with monkeypatch.context() as patch:
            for name in ("fsync", "rename", "replace", "mkdir"):
                patch.setattr(os, name, deadly(getattr(os, name)))
            try:
                trainer = Trainer(start_run(small_run(root)))
            except Killed:
                deaths += 1
                assert measured.lost_in(root) == 0
                continue
        break
    else:
        pytest.fail("no process came through")
    assert deaths >= 5
    trainer.train()
    assert measured.lost_in(root) == 0
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
    assert [path.name for path in root.glob("checkpoints/torn-*")] == ["torn-step-00000004"]


@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    ["checkpoints/torn-step-00000004", "aside/1/transcripts/train-000003.jsonl", "metrics.jsonl",
     "run.json"],
)  # fmt: skip
def test_kill_9_while_a_run_is_mended(
    target, tmp_path, warm, kill_before, small_runs, small_words, repeated_rows, what_was_measured
):
    root = tmp_path / "run"
    shutil.copytree(small_runs / "finished", root)
    os.truncate(root / "checkpoints/step-00000004/random.pt", 10)
    measured = what_was_measured(root)
    command = ["flowzoo.cli", *small_words(root)]
    kill_before(command, root / target)
    assert measured.lost_in(root) == 0
    done = warm(command).finish()
    assert done.returncode == 0, done.stderr
    assert measured.lost_in(root) == 0
    assert repeated_rows(root) == repeated_rows(small_runs / "finished")
