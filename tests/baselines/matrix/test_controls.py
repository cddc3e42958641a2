"""The control at equal inference, and finished runs opened again, on tiny real runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.evaluation.majority import vote
from flowzoo.baselines.matrix import controls
from flowzoo.baselines.matrix.controls import first_samples, last_evaluation, match_control
from flowzoo.baselines.run.reading import like_path, run_label
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.stats import paired_gain
from flowzoo.baselines.training.finished import open_finished, read_finished
from flowzoo.baselines.training.trainer import train
from flowzoo.errors import UsageError

pytestmark = pytest.mark.xdist_group("controls")  # they share runs

SMALL: dict[str, Any] = {
    "steps": 2, "problems": 2, "samples": 2, "eval_problems": 8, "eval_every": 2,
    "checkpoint_every": 1, "threads": 1, "max_tokens": 32,
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`control`, `vote/seed-0` and `other`, a control on other problems."""
    root = tmp_path_factory.mktemp("runs")
    lora = {"lora_rank": 4, "lr": 0.02}
    for name, changes in {
        "control": {"workflow": "single", **lora},
        "vote/seed-0": {"workflow": "voting"},
        "other": {"workflow": "single", "eval_problems": 7, "steps": 1},
    }.items():
        train(TrainConfig(**{**SMALL, **changes, "out": str(root / name)}))
    return root


@pytest.mark.full
@pytest.mark.parametrize("name", ["control", "vote/seed-0"])
def test_a_finished_run_plays_its_last_evaluation_again(runs, name):
    data = read_finished(runs / name)
    with open_finished(runs / name) as run:
        records = run.evaluation.play(run.policy_map)
        protocol = json.loads(json.dumps(run.evaluation.protocol(run.policy_map)))
    assert protocol == (data.summary or {})["protocol"]
    assert run.step == 2
    saved = [json.loads(line) for line in data.transcript_files("eval")[2].open()]
    replies = [[call["reply"] for call in episode["calls"]] for episode in saved]
    assert [[call.reply for call in record.calls] for record in records] == replies
    first = [json.loads(line) for line in data.transcript_files("eval")[0].open()]
    assert replies != [[call["reply"] for call in one["calls"]] for one in first]  # it has learned


def test_votes_cost_what_the_workflow_does(runs):
    control, workflow = runs / "control", runs / "vote" / "seed-0"
    found = match_control(control, workflow)
    path = control / "like-vote--seed-0.json"
    assert path == like_path(control, workflow)
    assert found == json.loads(path.read_text())
    theirs = found["workflow"]
    assert (theirs["run"], theirs["workflow"], theirs["step"]) == ("vote--seed-0", "voting_v0", 2)
    assert theirs["calls"] == 4
    by_calls, by_tokens = found["votes"]["calls"], found["votes"]["tokens"]
    assert (by_calls["k"], by_calls["calls"], by_calls["problems"]) == (4, 4, 8)
    assert by_tokens["k"] == round(theirs["tokens"] / found["control"]["tokens"])
    assert by_calls["accuracy"] == sum(by_calls["scores"]) / 8
    with open_finished(control) as run:  # the same votes, one after another
        records = run.evaluation.play(run.policy_map, 4)
    again = vote(run.evaluation.workflow, run.evaluation.problems, records)
    assert again["scores"] == by_calls["scores"]
    assert {f"pass@{k}" for k in (1, 2)} <= set(found["attempts"])
    scores = read_finished(workflow).evaluations[-1]["eval/scores"]
    assert by_calls["gain"] == paired_gain(again["scores"], scores)._asdict()


def test_what_is_done_is_not_done_again_and_what_is_stale_is(runs, monkeypatch):
    control, workflow = runs / "control", runs / "vote" / "seed-0"
    before = match_control(control, workflow, ["calls"])

    def fail(folder):
        raise RuntimeError(f"{folder} was opened")

    monkeypatch.setattr(controls, "open_finished", fail)
    assert match_control(control, workflow, ["calls"]) == before
    path = like_path(control, workflow)
    stale = before | {"workflow": before["workflow"] | {"accuracy": -1.0}}
    path.write_text(json.dumps(stale))
    with pytest.raises(RuntimeError, match="was opened"):
        match_control(control, workflow, ["calls"])
    path.unlink()


def test_other_problems_an_unfinished_run_and_other_words_are_refused(runs, tmp_path):
    with pytest.raises(UsageError, match="other problems"):
        match_control(runs / "other", runs / "vote" / "seed-0")
    with pytest.raises(UsageError, match="no run directory"):
        match_control(runs / "control", tmp_path)
    unfinished = tmp_path / "half"
    unfinished.mkdir()
    for name in ("run.json", "metrics.jsonl"):
        (unfinished / name).write_text((runs / "control" / name).read_text())
    with pytest.raises(UsageError, match="not finished"):
        match_control(unfinished, runs / "vote" / "seed-0")
    with pytest.raises(UsageError, match=r"unknown match 'call'.*'calls'"):
        match_control(runs / "control", runs / "vote" / "seed-0", ["call"])


@pytest.mark.full
def test_the_command_says_where_it_wrote_or_why_not(runs, warm):
    words = ["flowzoo.baselines.matrix.controls", "--match", "calls"]
    good = [*words, "--run", str(runs / "control"), "--like", str(runs / "vote" / "seed-0")]
    done = warm(good).finish()
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert set(json.loads(path.read_text())["votes"]) >= {"calls"}
    bad = [*words, "--run", str(runs / "other"), "--like", str(runs / "vote" / "seed-0")]
    refused = warm(bad).finish()
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: ")


def test_names_and_first_samples(tmp_path):
    assert run_label(tmp_path / "cell" / "seed-12") == "cell--seed-12"
    assert run_label(tmp_path / "voting-math") == "voting-math"
    records: Any = [(problem, sample) for problem in "ab" for sample in range(3)]
    assert first_samples(records, 3, 2) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_the_last_evaluation_is_the_one_compared(runs):
    data = read_finished(runs / "control")
    found = last_evaluation(data)
    assert found["step"] == 2
    assert found["accuracy"] == (data.summary or {})["accuracy_after"]
