"""Evaluations of a run: several episodes of a problem, the ends they bring, evaluation sets."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from flowzoo.baselines.report.accuracy import gain
from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.plan import resolve
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.commands.train import Options, print_summary
from flowzoo.commands.train import run as run_command
from flowzoo.errors import UsageError

SMALL: dict[str, Any] = {
    "workflow": "single", "problems": 2, "samples": 4, "eval_problems": 6, "eval_every": 1,
    "threads": 1, "probe_every": 0,
}  # fmt: skip


def make_config(root: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL, **changes, "out": str(root)})


def test_several_episodes_of_a_problem_change_the_evaluations_alone(
    tmp_path, capsys, repeated_rows
):
    train(make_config(tmp_path / "one", steps=1))
    summary = train(make_config(tmp_path / "three", steps=1, eval_samples=3))
    for one, three in zip(
        repeated_rows(tmp_path / "one"), repeated_rows(tmp_path / "three"), strict=True
    ):
        training = {name: value for name, value in one.items() if not name.startswith("eval/")}
        assert training == {name: three[name] for name in training}
        assert len(three["eval/scores"]) == len(one["eval/scores"]) == 6
        assert [count / 3 for count in three["eval/right"]] == three["eval/scores"]
        assert three["eval/pass@1"] == pytest.approx(three["eval/avg@3"])
        assert three["eval/pass@3_low"] <= three["eval/pass@3"] <= three["eval/pass@3_high"]
        assert "eval/right" not in one
    # The noise belongs to problem and sample: the first of three is the one of one.
    saved = {
        name: [
            [call["reply"] for call in json.loads(line)["calls"]]
            for line in (tmp_path / name / "transcripts" / "eval-000001.jsonl").open()
        ]
        for name in ("one", "three")
    }
    assert len(saved["three"]) == 18
    assert saved["three"][::3] == saved["one"]
    assert saved["three"][1::3] != saved["one"]
    assert summary["protocol"]["samples"] == 3
    assert list(summary["attempts"]) == ["avg@3", "pass@1", "pass@2", "pass@3"]
    print_summary(summary, tmp_path)
    assert "\npass@3       " in capsys.readouterr().out


def first_evaluation(root: Path) -> list[list[str]]:
    """The replies of the evaluation before the first step, by episode."""
    lines = (root / "transcripts" / "eval-000000.jsonl").open()
    return [[call["reply"] for call in json.loads(line)["calls"]] for line in lines]


def test_evaluations_have_their_own_sampling_and_lengths(tmp_path, repeated_rows):
    def played(name: str, **changes: Any) -> tuple[list[list[str]], dict[str, Any], Any]:
        summary = train(make_config(tmp_path / name, steps=1, **changes))
        rows = repeated_rows(tmp_path / name)
        training = {key: x for key, x in rows[1].items() if not key.startswith("eval/")}
        return first_evaluation(tmp_path / name), training, summary["protocol"]

    usual, training, _ = played("usual")
    greedy, *_ = played("greedy", eval_temperature=0.0)
    assert usual != greedy
    for name, changes in (("k", {"eval_top_k": 1}), ("p", {"eval_top_p": 1e-6})):
        # One token is left to sample: the most likely one.
        assert played(name, **changes)[:2] == (greedy, training)
    long, uncut, _ = played("long", max_tokens=40)
    short, cut, _ = played("short", max_tokens=5)
    longer, as_cut, protocol = played("longer", max_tokens=5, eval_max_tokens=40)
    assert (longer, as_cut) == (long, cut)
    assert protocol["lengths"] == {"generator": [None, 40]}
    assert protocol["decoding"]["shared"]["max_tokens"] == 40
    shorter, as_long, _ = played("shorter", max_tokens=40, eval_max_tokens=5)
    assert shorter == short != long
    assert as_long == uncut != cut


@pytest.mark.full
def test_a_run_that_ends_early_ends_like_a_finished_one_and_says_so(
    tmp_path, capsys, repeated_rows
):
    still = {"steps": 3, "lr": 1e-12, "checkpoint_every": 3}  # a run that gets no better
    train(make_config(tmp_path / "whole", **still))
    summary = train(make_config(tmp_path / "short", **still, stop_patience=2))
    assert summary["steps"] == 2
    assert "none of the 2 evaluations since step 0 was better" in summary["stopped"]
    assert repeated_rows(tmp_path / "short") == repeated_rows(tmp_path / "whole")[:3]
    assert (tmp_path / "short" / "checkpoints" / "step-00000002" / "checkpoint.json").is_file()

    capsys.readouterr()
    settings = make_config(tmp_path / "short", **still, stop_patience=2)
    assert run_command(Options(settings=settings)) == 0
    said = capsys.readouterr().out
    assert f"is finished after step 2 ({summary['stopped']})" in said
    assert "without --stop-patience, --stop-at and --on-collapse stop it continues" in said
    assert f"stopped after step 2: {summary['stopped']}" in said
    assert len(repeated_rows(tmp_path / "short")) == 3, "nothing more is played"
    assert not (tmp_path / "short" / "aside").exists(), "the summary was that of a finished run"

    # Without it the run goes on, to the numbers of the one that never stopped.
    train(make_config(tmp_path / "short", **still))
    assert repeated_rows(tmp_path / "short") == repeated_rows(tmp_path / "whole")


def test_a_run_that_is_good_enough_ends(tmp_path):
    summary = train(make_config(tmp_path, steps=9, stop_at=0.01))
    assert summary["steps"] == 0
    assert summary["stopped"].endswith("reaches stop_at 0.01")
    assert summary["gain"]["mean"] == 0.0


SMALL_SETS: dict[str, Any] = {
    "workflow": "single", "problems": 2, "samples": 4, "steps": 2, "eval_problems": 6,
    "threads": 1, "probe_every": 0, "eval_temperature": 0.0, "max_tokens": 40,
}  # fmt: skip


def write_rows(path: Path, numbers: range) -> str:
    rows = ({"question": f"Compute {n}*4+5.", "answer": str(4 * n + 5)} for n in numbers)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def make_sets_config(root: Path, **changes: Any) -> TrainConfig:
    return TrainConfig(**{**SMALL_SETS, **changes, "out": str(root)})


def test_sets_change_nothing_else_and_are_measured_in_whole(tmp_path, repeated_rows):
    small, large = (write_rows(tmp_path / f"{n}.jsonl", range(2, 2 + n)) for n in (3, 7))
    train(make_sets_config(tmp_path / "without"))
    sets = (f"small={small}", f"large={large}")
    summary = train(make_sets_config(tmp_path / "with", eval_sets=sets))
    pairs = zip(*map(repeated_rows, (tmp_path / "without", tmp_path / "with")), strict=True)
    for without, measured in pairs:
        assert without == {
            name: value for name, value in measured.items() if not name.startswith("eval_sets/")
        }
        if "eval/scores" in measured:
            assert len(measured["eval_sets/small/scores"]) == 3
            assert len(measured["eval_sets/large/scores"]) == 7
    # As the held-out problems of a run on that file are.
    rows = write_rows(tmp_path / "rows.jsonl", range(12, 17))
    held_out = make_sets_config(tmp_path / "alone", steps=1, eval_problems=7,
                        options=(f"data=train={rows},validation={large}",))  # fmt: skip
    first = Trainer(start_run(held_out))
    try:
        scores = first.evaluate(0)["eval/scores"]
    finally:
        first.close()
    measured = read_run(tmp_path / "with", "with").rows
    assert measured[0]["eval_sets/large/scores"] == scores
    item = summary["eval_sets"]["large"]
    assert item["accuracy_before"] == pytest.approx(sum(scores) / 7)
    found, alone = (
        gain(read_run(tmp_path / name, name), None).findings[0] for name in ("with", "without")
    )
    text = found.text
    assert found.title == alone.title
    assert "On the evaluation set small it went from " in text
    assert (tmp_path / "with" / "transcripts" / "set-large-000002.jsonl").is_file()


def test_problems_that_are_trained_on_are_counted(tmp_path, caplog):
    rows, other = (write_rows(tmp_path / f"{n}.jsonl", range(2, 2 + n)) for n in (8, 5))
    held_out = write_rows(tmp_path / "held_out.jsonl", range(20, 24))
    config = make_sets_config(
        tmp_path / "run", steps=1, eval_problems=4, eval_sets=(f"other={other}",),
        options=(f"data=train={rows},validation={held_out}",),
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "flowzoo"):
        Trainer(start_run(config)).close()
    assert "evaluation set other: 5 of its 5 problems are in split train" in caplog.text


@pytest.mark.parametrize(
    ("sets", "changes", "said"),
    [
        (("some/file.jsonl",), {}, "`eval_sets` takes NAME=VALUE"),
        (("a b=x.jsonl",), {}, "names a set 'a b': expected a word"),
        (("a=missing.jsonl",), {}, "neither an existing file"),
        (("a=x.jsonl", "a=y.jsonl"), {}, "names name a twice"),
    ],
)
def test_sets_that_are_none_are_refused_before_any_model_is_loaded(tmp_path, sets, changes, said):
    with pytest.raises(UsageError, match=said):
        resolve(make_sets_config(tmp_path, eval_sets=sets, **changes))
