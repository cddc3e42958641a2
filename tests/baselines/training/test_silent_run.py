"""A run that learns nothing says so within a step; what follows from the model is recorded."""

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from flowzoo.agents.pocket import pocket_path
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.training.build import start_run
from flowzoo.baselines.training.trainer import Trainer, train
from flowzoo.commands.train import print_summary
from flowzoo.errors import UsageError

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
