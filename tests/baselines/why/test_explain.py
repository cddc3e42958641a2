"""`flowzoo why` on a real run of a pocket model: the cause is found, and the run stays as it is."""

import hashlib
import json
import shutil

import pytest

from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.why.units import open_case
from flowzoo.cli import main
from flowzoo.errors import UsageError

ARGUMENTS = [
    "train", "single", "--model", "pocket:xs", "--steps", "5", "--eval-every", "1",
    "--eval-problems", "80", "--eval-max-tokens", "40", "--threads", "1", "--lr", "2e-2",
    "--alert", "true",
]  # fmt: skip


@pytest.fixture(scope="module")
def fallen(tmp_path_factory):
    """A run that its learning rate broke."""
    out = tmp_path_factory.mktemp("why") / "run"
    assert main([*ARGUMENTS, "--out", str(out)]) == 0
    return out


def digests(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_rate_is_found_and_a_change_that_was_run_mends(fallen, capsys):
    before = digests(fallen)
    capsys.readouterr()
    assert main(["why", str(fallen), "--runs", "2", "--jobs", "1", "--json"]) == 0
    spent = json.loads(capsys.readouterr().out)
    assert (spent["verdict"], spent["remaining"]) == ("undecided", ["--lr 0.02"])
    assert main(["why", str(fallen), "--jobs", "1", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["fell"]
    assert (facts["verdict"], facts["culprits"]) == ("explained", [["--lr 0.02"]])
    assert facts["change"] == ["--lr 0.02"]
    assert facts["parted"] in range(1, 6)
    assert facts["made"] == 2  # the first call's rerun is kept
    mended = next(row for row in facts["reruns"] if row["left_out"] and row["seed"] == 0)
    assert mended["gain"]["low"] > 0
    assert digests(fallen) == before


def test_a_run_without_checkpoints_is_explained_from_its_start_and_alerts_nobody(fallen, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(fallen, run, ignore=shutil.ignore_patterns("step-*"))
    case = open_case(read_run(run, "run"))
    assert [str(unit) for unit in case.units] == ["--lr 0.02"]
    assert case.config(case.units, 1).alert == ""


@pytest.mark.parametrize("case", ["unfinished", "versions", "evaluations", "prompts"])
def test_a_run_that_cannot_be_explained_says_what_can_be_done(case, fallen, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(fallen, run)
    record = json.loads((run / "run.json").read_text())
    if case == "unfinished":
        (run / "summary.json").unlink()
    elif case == "versions":
        record["provenance"]["versions"]["torch"] = "1.0"
        (run / "run.json").write_text(json.dumps(record))
    elif case == "prompts":
        summary = json.loads((run / "summary.json").read_text())
        summary["protocol"]["prompts"] = "single_v0@1:others"
        (run / "summary.json").write_text(json.dumps(summary))
    else:
        rows = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
        (run / "metrics.jsonl").write_text("".join(rows[:1]))
    expected = {"unfinished": "has not ended: wait", "versions": "train it again here",
                "evaluations": "fewer than 3 evaluations",
                "prompts": "the text of a prompt has changed"}[case]  # fmt: skip
    with pytest.raises(UsageError, match=expected):
        open_case(read_run(run, "run"))
