"""`flowzoo prompts`: a file that `--prompts` takes, and the chats of roles."""

import tomllib

import pytest

from flowzoo.cli import main
from flowzoo.envs import WORKFLOWS, make_workflow


@pytest.mark.parametrize("name", WORKFLOWS)
@pytest.mark.parametrize("texts", ["short", "full"])
def test_the_file_it_prints_is_what_the_workflow_has(name, texts, capsys, tmp_path):
    assert main(["prompts", name, "--prompts", texts]) == 0
    printed = capsys.readouterr().out
    workflow = make_workflow(name, texts=texts)
    assert tomllib.loads(printed)["prompts"] == dict(workflow.prompts)
    file = tmp_path / "prompts.toml"
    file.write_text(printed, encoding="utf-8")
    again = make_workflow(name, texts=str(file))
    assert again.prompts == workflow.prompts
    assert again.task.instruction == workflow.task.instruction


def test_chats_show_system_messages_and_examples(capsys):
    args = ["--system", "aggregator=Judge [well].", "--examples", "1", "--chats"]
    assert main(["prompts", "voting", *args]) == 0
    printed = capsys.readouterr().out
    assert "Judge [well]." in printed
    assert printed.count("assistant") == 2
    assert printed.index("generator") < printed.index("aggregator")


def test_eval_and_play_take_them(capsys):
    args = ["--policy", "scripted:1", "--system", "generator=Be brief.", "--examples", "1"]
    assert main(["eval", "voting", *args, "--n", "3"]) == 0
    assert "accuracy 100.0 %" in capsys.readouterr().out
    assert main(["play", "voting", *args, "--chats"]) == 0
    assert "Be brief." in capsys.readouterr().out
    assert main(["eval", "voting", *args, "--options", "examples=2"]) == 2
    assert "--examples and --options" in capsys.readouterr().err
