"""Names of other libraries are answered with the names that they have here."""

import re
import tomllib
from pathlib import Path

import pytest

import flowzoo
from flowzoo.arguments import arguments_of
from flowzoo.baselines.settings.algorithms import ALGORITHMS
from flowzoo.cli import main
from flowzoo.commands.line import COMMANDS, actions_of, options_of
from flowzoo.envs import voting_v0
from flowzoo.envs.tasks import TASKS
from flowzoo.errors import OptionError, UsageError

HINTS = tomllib.loads(Path(flowzoo.__file__).with_name("hints.toml").read_text("utf-8"))
LINES = {
    "train voting --batch-size 8": "Here it is --problems (of a step) and --samples (episodes of",
    "train voting --learning-rate 1e-5": "Here it is --lr.",
    "train voting --num-generations 8": "Here it is --samples.",
    "train voting --beta 0.1": "Here it is --kl.",
    "train voting --output-dir x": "Here it is --out.",
    "train voting --dataset x": "Here it is --options data=FILE.",
    "eval voting --dataset x": "Here it is --data.",
    "eval voting --model x": "Here it is --policy hf:MODEL.",
    "train voting --model_name_or_path x": "Here it is --model.",
    "train voting --resume": "Here it is the same command again, which goes on",
    "eval voting --learning-rate 1": "--options learning_rate=VALUE",  # eval has no rate
    "train voting --task gsm8k": "Here it is math, whose data it is: data=openai/gsm8k.",
    "play single --task humanevalplus": "Here it is code, whose data it is",
    "train voting --algorithm ppo": "Here it is grpo, which has the clipped loss of PPO",
    "eval voting --policy gpt-4o": "Here it is openai:gpt-4o@URL.",
    "train --config c.yaml": "Here it is a TOML file",
    "train --config c.toml": "unknown field in c.toml 'learning_rate'. Here it is lr.",
    "test voting": "Here it is eval.",
    "tran voting": "Did you mean 'train'?",
    "play vote": "Did you mean 'voting_v0'?",
    "play sin": "Did you mean 'single_v0'?",
}


def command_options() -> dict[str, set[str]]:
    found = {}
    for command in COMMANDS:
        for options in (actions_of(options_of(command)) or {"": options_of(command)}).values():
            names = {argument.label[2:] for argument in arguments_of(options) if argument.is_option}
            found[command] = found.get(command, set()) | names
    return found


@pytest.mark.parametrize("line", LINES)
def test_a_name_of_another_library_gets_the_name_of_this_one(line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text('workflow = "voting"\nlearning_rate = 1e-5\n')
    assert main(line.split()) == 2
    printed = capsys.readouterr().err
    assert LINES[line] in printed
    assert printed.count("\n") == 1


def test_environments_hint_as_commands_do():
    with pytest.raises(OptionError, match="Did you mean 'task'"):
        voting_v0.env(taks="math")
    with pytest.raises(UsageError, match="Here it is math, whose data it is"):
        voting_v0.env(task="gsm8k")


def test_help_is_a_command_too(capsys):
    for line in (["help"], ["help", "eval"]):
        with pytest.raises(SystemExit) as end:
            main(line)
        assert not end.value.code
        hinted = capsys.readouterr().out
        with pytest.raises(SystemExit):
            main([*line[1:], "--help"])
        assert capsys.readouterr().out == hinted


def test_what_hints_name_exists_and_what_they_are_for_does_not():
    commands = command_options()
    for pattern, words in HINTS["option"].items():
        for text in words if isinstance(words, list) else [words]:
            named = re.findall(r"(?<=--)[a-z][a-z-]+", text)
            if named and not text.startswith("torchrun"):
                assert any(set(named) <= options for options in commands.values()), text
                assert any(
                    named[0] in options and pattern not in options for options in commands.values()
                ), pattern
    known = {"algorithm": set(ALGORITHMS), "task": set(TASKS), "command": set(COMMANDS)}
    for kind, names in known.items():
        assert not names & set(HINTS[kind])
        for text in HINTS[kind].values():
            first = re.match(r"(?:the command `flowzoo )?([\w]+)", text)
            assert first is not None
            assert first[1] in names | set(COMMANDS), text
    assert set(HINTS) == {"option", "policy", "config", *known}
