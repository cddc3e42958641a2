"""`flowzoo why` on a real run of a pocket model: the cause is found, and the run stays as it is."""

import hashlib
import itertools
import json
import shutil

import pytest

from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.why.explain import smallest_failing
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


def write_log(path, rewards, **others):
    rows = [
        {"step": 10 * number, "reward": reward, **{k: v[number] for k, v in others.items()}}
        for number, reward in enumerate(rewards)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


RISE = [0.2 + 0.05 * number for number in range(10)]


def test_a_fall_and_what_moved_with_it_are_said_and_no_cause(tmp_path, capsys):
    rewards = [*RISE, *[0.3, 0.31, 0.29, 0.3, 0.3, 0.31]]
    log = write_log(tmp_path / "log.jsonl", rewards, kl=[0.01] * 10 + [0.5] * 6)
    assert main(["why", "--log", log]) == 0
    score, kl, last = capsys.readouterr().out.splitlines()
    assert score.startswith("reward: it fell: 0.55 up to step 90")
    assert "0.302 at the end, step 150" in score
    assert kl == "kl: 0.01 then, 0.5 at the end"
    assert "cannot say more" in last


def test_a_log_that_rises_has_no_fall(tmp_path, capsys):
    assert main(["why", "--log", write_log(tmp_path / "log.jsonl", RISE * 1 + [0.7] * 6)]) == 0
    assert "no clear fall" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("not json\n{}\n", [], "line 1: expected one JSON object a line"),
        ("[3]\n{}\n", [], "line 1: expected one JSON object a line"),
        ("[" * 100_000 + "\n{}\n", [], "line 1: expected one JSON object a line"),
        ('{"loss": 1.0}\n' * 20, [], "has no score with more than 10 values"),
        (None, [], "cannot be read"),
        ("{}\n", ["some-run"], "leave some-run out"),
    ],
)
def test_what_is_no_log_is_refused_in_one_line(text, words, expected, tmp_path, capsys):
    file = tmp_path / "log.jsonl"
    if text is not None:
        file.write_text(text)
    assert main(["why", *words, "--log", str(file)]) == 2
    message = capsys.readouterr().err.strip()
    assert expected in message
    assert "\n" not in message


def test_neither_run_nor_log_is_an_error(capsys):
    assert main(["why"]) == 2
    assert "--log FILE" in capsys.readouterr().err


ITEMS = list(range(8))


@pytest.mark.parametrize("parallel", [1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_conjunction_is_found_exactly_at_small_cost(size, parallel):
    for truth in itertools.combinations(ITEMS, size):
        asked: list[int] = []

        def failing(sets, truth=truth, asked=asked):
            assert len(sets) <= parallel
            asked.append(len(sets))
            return [set(truth) <= set(kept) for kept in sets]

        assert smallest_failing(ITEMS, failing, parallel) == list(truth)
        assert len(asked) <= 4 * size


def test_of_two_causes_one_is_found():
    def failing(sets):
        return [1 in kept or 6 in kept for kept in sets]

    assert smallest_failing(ITEMS, failing, 2) == [1]
