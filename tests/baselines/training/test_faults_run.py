"""Runs in which something is wrong: silence, falls, non-finite numbers, unknown verdicts."""

import json
import logging
import math
import re
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flowzoo.agents import Request
from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.backends.ray.learners import run_concurrently
from flowzoo.baselines.learner.loss import NonFiniteError
from flowzoo.baselines.report.health import health_findings
from flowzoo.baselines.run import directory
from flowzoo.baselines.run.reading import read_run
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import preflight
from flowzoo.baselines.training import build
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.factories import open_engines
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.cli import main
from flowzoo.commands.train import print_summary
from flowzoo.envs import make_workflow
from flowzoo.errors import UsageError
from flowzoo.files import free_path

QUICK: dict[str, Any] = {"workflow": "single", "eval_problems": 2, "problems": 2, "threads": 1}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the pocket's shape with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    root = tmp_path_factory.mktemp("random") / "model"
    torch.manual_seed(0)
    shape = AutoConfig.from_pretrained(pocket_path())
    AutoModelForCausalLM.from_config(shape, dtype=torch.float32).save_pretrained(root)
    AutoTokenizer.from_pretrained(pocket_path()).save_pretrained(root)
    return root


def test_a_random_model_with_the_defaults_warns_within_one_step(
    random_model, tmp_path, caplog, capsys
):
    # The defaults but for the number of held-out problems, which have no part in it.
    config = TrainConfig(
        workflow="single", model=str(random_model), steps=1, eval_problems=2, out=str(tmp_path)
    )
    with caplog.at_level(logging.WARNING, logger="flowzoo"):
        summary = train(config)
    cut, said = [one.getMessage() for one in caplog.records if one.name == "flowzoo"]
    assert "of 128 replies ran into the length limit of 64 tokens" in cut
    assert re.search(r"--max-tokens \d{3}$", cut), cut
    assert said.startswith("step 1 trained nothing: 0 of 128 rows, no optimizer step")
    assert "raise --max-tokens (now 64)" in said
    start, record = json.loads((tmp_path / "summary.json").read_text())["warnings"]
    assert (start["cause"], start["first"]) == ("truncation/generator", 1)
    assert record == {"cause": "nothing", "first": 1, "last": 1, "steps": 1, "text": said}
    print_summary(summary, tmp_path)
    assert f"warning      {said} [at 1 of 1 steps]" in capsys.readouterr().out


@pytest.mark.full
def test_a_cause_is_told_once_and_by_every_process_that_goes_on(random_model, tmp_path, caplog):
    def told(steps):
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="flowzoo"):
            train(TrainConfig(**QUICK, model=str(random_model), steps=steps, out=str(tmp_path)))
        return [one.getMessage().split(":")[0] for one in caplog.records if one.name == "flowzoo"]

    assert told(2) == ["generator", "step 1 trained nothing"]
    third = told(3)
    assert third[0] == "step 3 trained nothing"
    assert any("ran into the length limit" in one for one in third), "by the history, too"


def test_the_start_is_judged_before_anything_is_trained(random_model, tmp_path, caplog, capsys):
    settings = QUICK | {"eval_problems": 8, "max_tokens": 2, "steps": 1}
    trainer = Trainer(
        start_run(TrainConfig(**settings, model=str(random_model), out=str(tmp_path)))
    )
    heard: list[int] = []
    update = trainer.update
    with caplog.at_level(logging.WARNING, logger="flowzoo"):
        trainer.update = lambda *args: heard.append(len(caplog.records)) or update(*args)
        print_summary(trainer.train(), tmp_path)
    counted = re.findall(r"\[at (\d) of (\d) steps\]", capsys.readouterr().out)
    assert counted == [("2", "2"), ("2", "2"), ("1", "1")], "with step 0"
    said = [one.getMessage() for one in caplog.records if one.name == "flowzoo"]
    assert heard == [2], "of the evaluation, and each once"
    assert said[0].startswith("generator: all 8 replies ran into the length limit of 2 tokens")
    assert said[1].startswith("generator: none of 8 replies could be read")


def test_groups_that_agree_are_told_of_before_they_are_trained_on(tmp_path, caplog):
    reward = tmp_path / "mine.py"
    reward.write_text("def zero(episode):\n    return 0.0\n")
    settings = QUICK | {"problems": 8, "steps": 1, "reward": f"{reward}:zero"}
    with caplog.at_level(logging.WARNING, logger="flowzoo"):
        train(TrainConfig(**settings, out=str(tmp_path / "run")))
    (said,) = [one.getMessage() for one in caplog.records if one.name == "flowzoo"]
    assert said.startswith("none of 8 groups has rewards that differ"), "and no second line of it"


def test_what_follows_from_the_model_is_recorded_and_kept(tmp_path):
    trainer = Trainer(start_run(TrainConfig(**QUICK, steps=1, out=str(tmp_path / "a"))))
    assert trainer.run.plan.by_model == {"lr": 2e-4, "max_tokens": 64}
    trainer.train()
    settings = json.loads((tmp_path / "a" / "run.json").read_text())["settings"]
    assert (settings["lr"], settings["max_tokens"], settings["top_k"]) == (2e-4, 64, 0)

    train(TrainConfig(**QUICK, steps=1, lr=1e-3, max_tokens=8, out=str(tmp_path / "b")))
    longer = Trainer(start_run(TrainConfig(**QUICK, steps=2, out=str(tmp_path / "b"))))
    assert (longer.run.config.lr, longer.run.config.max_tokens, longer.run.plan.by_model) == (
        1e-3,
        8,
        {},
    )
    assert longer.run.learners["shared"].config.lr == 1e-3
    longer.close()
    with pytest.raises(UsageError, match=r"lr 0\.001 -> 0\.0002"):
        Trainer(start_run(TrainConfig(**QUICK, steps=2, lr=2e-4, out=str(tmp_path / "b"))))


ARGUMENTS = [
    "train", "single", "--model", "pocket:xs", "--steps", "7", "--eval-every", "1",
    "--eval-problems", "150", "--eval-max-tokens", "40", "--threads", "1", "--lr", "1.5e-2",
    "--checkpoint-every", "100",
]  # fmt: skip


def rows_of(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_fall_is_told_at_once_and_a_run_that_stops_keeps_its_best(tmp_path, capfd):
    out, told = tmp_path / "run", tmp_path / "told.jsonl"
    notify = tmp_path / "notify.py"
    notify.write_text(
        "import sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + chr(10))", encoding="utf-8"
    )
    alert = f"{sys.executable} {notify} {told}"
    words = ["--on-collapse", "stop", "--alert", alert, "--out", str(out)]
    assert main([*ARGUMENTS, *words]) == 0
    printed = capfd.readouterr()
    rows = rows_of(out)
    (last,) = [row for row in rows if "watch/events" in row]
    assert last is rows[-1]
    assert last["step"] < 7
    (event,) = last["watch/events"][:1]
    assert event["text"] in printed.err
    assert json.loads(told.read_text().splitlines()[0]) == {"run": str(out), **event}
    lines = printed.out.strip().splitlines()
    best = max(rows, key=lambda row: row["eval/reward/mean"])
    assert lines[-1].startswith(f"best         {100 * best['eval/reward/mean']:.1f} % at step")
    assert "(on_collapse stop)" in printed.out
    summary = json.loads((out / "summary.json").read_text())
    assert [one["text"] for one in summary["events"]] == [
        one["text"] for one in last["watch/events"]
    ]


def test_a_run_that_goes_back_has_its_best_weights_and_a_lower_rate(tmp_path, capfd):
    out = tmp_path / "run"
    assert main([*ARGUMENTS, "--on-collapse", "rollback", "--out", str(out)]) == 0
    assert "back to the weights of step" in capfd.readouterr().err
    rows = rows_of(out)
    back = next(row for row in rows if "watch/rollback" in row)
    after = rows[back["step"] + 1]
    best = rows[back["watch/rollback"]]
    assert best["eval/reward/mean"] == max(
        row["eval/reward/mean"] for row in rows[: back["step"] + 1]
    )
    assert after["learn/lr/shared"] <= back["learn/lr/shared"] / 2
    assert after["eval/reward/mean"] > back["eval/reward/mean"]
    assert (out / "checkpoints" / f"step-{rows[-1]['step']:08d}").is_dir()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"alert": 'python "x'}, "close its quotes"),
        ({"alert": "  "}, "must name a command"),
        ({"on_collapse": "rollback", "max_staleness": 1}, "batches sampled"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, expected, tmp_path):
    with pytest.raises(UsageError, match=expected):
        preflight(TrainConfig(model="pocket:xs", out=str(tmp_path / "run"), **settings))


def test_a_command_of_a_file_is_not_run_unless_it_is_trusted(tmp_path, capsys):
    file = tmp_path / "settings.toml"
    file.write_text(
        'workflow = "single"\nmodel = "pocket:xs"\nsteps = 1\neval_problems = 30\n'
        'alert = "touch x"\n'
    )
    words = ["--config", str(file), "--out", str(tmp_path / "run")]
    assert main(["train", *words]) == 2
    assert "touch x" in capsys.readouterr().err


class Poisoned:
    """A policy whose second reply has a log-prob that is not a number."""

    batching = "static"

    def __init__(self, inner: Any) -> None:
        self.inner, self.name, self.asked = inner, inner.name, 0

    async def generate(self, requests: Sequence[Request]) -> list[Any]:
        replies = await self.inner.generate(requests)
        for place in range(len(replies)):
            self.asked += 1
            if self.asked == 2:
                logps = list(replies[place].logps)
                logps[1] = math.nan
                replies[place] = replace(replies[place], logps=tuple(logps))
        return replies

    async def close(self) -> None:
        await self.inner.close()


def make(root: Path) -> Trainer:
    return Trainer(start_run(
        TrainConfig(
            steps=2, problems=2, samples=4, eval_problems=2, threads=1, sharing=("isolated",),
            out=str(root),
        )
    ))  # fmt: skip


@pytest.mark.full
def test_a_poisoned_row_stops_the_run_and_is_saved(tmp_path):
    trainer = make(tmp_path)
    trainer.run.engines.train_policies = dict(trainer.run.engines.train_policies)
    trainer.run.engines.train_policies["generator"] = Poisoned(
        trainer.run.engines.train_policies["generator"]
    )
    before = {k: v.clone() for k, v in trainer.run.learners["generator"].model.state_dict().items()}
    with pytest.raises(NonFiniteError, match="policy 'generator'") as caught:
        trainer.train()
    said = str(caught.value)
    saved = tmp_path / "nonfinite-000001.jsonl"
    (row,) = [json.loads(line) for line in saved.read_text().splitlines()]
    assert math.isnan(row["logps"][1])
    where = f"{row['problem']}/{row['episode']}/{row['agent']}/{row['turn']}"
    assert f"role 'generator', row {where}" in said
    assert "recorded nan as the log-prob of output token 1" in said
    assert any(str(saved) in note for note in caught.value.__notes__)
    after = trainer.run.learners["generator"].model.state_dict()
    assert all(torch.equal(before[name], weight) for name, weight in after.items())
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [0]
    again = make(tmp_path)
    assert again.run.state.step == 0, "the checkpoint before it is good"
    again.train()
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").open()] == [0, 1, 2]


def test_policies_that_fail_at_the_same_time_each_keep_their_rows(tmp_path, monkeypatch):
    """Learners in threads, as those of learner groups are; both come to save at once if they
    can."""
    trainer, meeting = make(tmp_path), threading.Barrier(2)

    def spoil():
        for learner in trainer.run.learners.values():
            with torch.no_grad():
                learner.parameters[-1].fill_(math.nan)

    def late(path):
        found = free_path(path)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(1)
        return found

    def together(works):
        return run_concurrently([{name: work} for name, work in works.items()], lambda: None)

    trainer.run.engines.before_learning = spoil
    trainer.run.backend.together = together
    monkeypatch.setattr(directory, "free_path", late)
    with pytest.raises(NonFiniteError, match="the loss of") as caught:
        trainer.train()
    rows = {
        path: {json.loads(line)["role"] for line in path.read_text().splitlines()}
        for path in tmp_path.glob("nonfinite-000001.jsonl*")
    }
    assert sorted(rows.values(), key=str) == [{"aggregator"}, {"generator"}]
    (note,) = caught.value.__notes__
    (mine,) = [roles for path, roles in rows.items() if note.endswith(f"saved in {path}")]
    assert f"policy {mine.pop()}:" in note


def test_the_command_line_says_it_in_one_line(tmp_path, capsys, monkeypatch):
    def poisoned(*args):
        engines: Any = open_engines(*args)
        engines.train_policies = {
            name: Poisoned(player) for name, player in engines.train_policies.items()
        }
        return engines

    monkeypatch.setattr(build, "open_engines", poisoned)
    words = ["train", "voting", "--steps", "1", "--problems", "2", "--samples", "2",
             "--eval-problems", "2", "--out", str(tmp_path)]  # fmt: skip
    assert main(words) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert "policy 'shared' is not finite; the first is role 'generator'" in said
    assert said.endswith(f"the rows are saved in {tmp_path / 'nonfinite-000001.jsonl'}")


def test_weights_that_are_not_numbers_stop_the_run(tmp_path):
    """The learner's, between sampling and learning: the loss of the first rows is to blame."""
    trainer = make(tmp_path)

    def spoil():
        with torch.no_grad():
            trainer.run.learners["generator"].parameters[-1].fill_(math.nan)

    trainer.run.engines.before_learning = spoil
    with pytest.raises(NonFiniteError, match=r"the loss of .* rows of policy 'generator'"):
        trainer.train()
    rows = (tmp_path / "nonfinite-000001.jsonl").read_text().splitlines()
    assert {json.loads(line)["role"] for line in rows} == {"generator"}


BROKEN = "import os; os._exit(0); f()"
PROGRAM = "def f(x):\n    return 1"


def rows_in(folder: Path, split: str, test: str, count: int) -> list[dict[str, Any]]:
    """Rows with this test whose problems are of `split`, in words that the pocket model knows."""
    generated = make_workflow("single", "code", level=1).task
    rows = [
        {"text": generated.problem(index, "all").text, "code": PROGRAM, "test_list": [test]}
        for index in range(200)
    ]
    path = folder / "rows.json"
    path.write_text(json.dumps(rows))
    task = make_workflow("single", "code", data=str(path)).task
    return [rows[task.problem(index, split).meta["row"] - 1] for index in range(count)]


def code_file(folder: Path, tests: dict[str, list[str]]) -> str:
    """A file with a problem for each test of each split."""
    rows = [
        rows_in(folder, split, test, len(asserts))[number]
        for split, asserts in tests.items()
        for number, test in enumerate(asserts)
    ]
    path = folder / "m.json"
    path.write_text(json.dumps(rows))
    return str(path)


def settings(folder: Path, tests: dict[str, list[str]], **changes: Any) -> TrainConfig:
    usual: dict[str, Any] = {
        "workflow": "single", "task": "code", "steps": 2, "problems": 2, "samples": 4,
        "eval_problems": 3, "eval_every": 1, "eval_samples": 2, "threads": 1, "warmup": 0,
        "max_tokens": 40, "probe_every": 0, "transcripts_every": 1, "out": str(folder / "run"),
        "options": (f"data={code_file(folder, tests)}",),
    }  # fmt: skip
    return TrainConfig(**usual | changes)


def test_unknown_episodes_are_counted_and_not_trained_on(tmp_path, caplog):
    good = "assert f(1) is not None"
    tests = {"train": [good, BROKEN], "validation": [good, BROKEN, good]}
    with caplog.at_level(logging.WARNING, logger="flowzoo"):
        summary = train(settings(tmp_path, tests))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for row in rows[1:]:
        assert 0 < row["reward/unknown"] <= 4
        episodes = (tmp_path / "run" / "transcripts" / f"train-{row['step']:06}.jsonl").read_text()
        assert len(episodes.splitlines()) == 8 - row["reward/unknown"]
    for row in rows:
        assert row["eval/reward/unknown"] == 1
        known = [score for index, score in enumerate(row["eval/scores"]) if index != 1]
        assert len(known) == 2
        assert row["eval/reward/mean"] == pytest.approx(sum(row["eval/scores"]) / 3)
    assert summary["unknown"] == sum(row["reward/unknown"] for row in rows[1:])
    said = [record.getMessage() for record in caplog.records if record.name == "flowzoo"]
    assert len([text for text in said if "are unknown, so they are not trained on" in text]) == 1
    failures = (tmp_path / "run" / "failures.jsonl").read_text()
    assert "the test's own code failed" in failures
    titles = [finding.title for finding in health_findings(read_run(tmp_path / "run", "run"))]
    assert "Some verdicts are unknown" in titles


def test_a_run_of_unknown_verdicts_alone_stops(tmp_path):
    with pytest.raises(UsageError, match="verdicts on all 1 held-out problems are unknown"):
        train(settings(tmp_path, {"train": [BROKEN], "validation": [BROKEN]}, eval_problems=1))
