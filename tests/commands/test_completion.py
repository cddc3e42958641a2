"""`flowzoo completion`: what the shells offer, asked of the shells themselves."""

import shutil
import subprocess

import pytest

from flowzoo import cli

ASK = {
    "bash": """source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _flowzoo; printf '%s\\n' "${COMPREPLY[@]}" """,
    "zsh": """fpath=("${1:h}" $fpath); autoload -Uz _flowzoo; shift; words=("$@"); CURRENT=$#
        _describe() { print -l -- "${(@P)2}" }; _flowzoo""",
    "fish": """source $argv[1]; complete --do-complete (string join ' ' -- $argv[2..])""",
}
"""Programs that get the completions' file and the words so far, and print what may come next."""
BARE = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}


@pytest.mark.parametrize("shell", ASK)
def test_commands_options_and_choices_are_offered(shell, tmp_path, capsys):
    assert cli.main(["completion", shell]) == 0
    path = tmp_path / "_flowzoo"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")

    def offered(*args):
        """Candidates after `args`, without their descriptions."""
        name = [] if shell == "fish" else [shell]
        command = [shell, *BARE[shell], "-c", ASK[shell], *name, str(path), "flowzoo", *args]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return {line.replace("\t", ":").split(":")[0] for line in done.stdout.splitlines() if line}

    assert offered("tr") == {"train"}
    assert {"play", "eval", "train", "report"} <= offered("")
    assert offered("train", "--optimi") == {"--optimizer"}
    assert offered("train", "--optimizer", "") == {
        "adamw", "adafactor", "sgd", "muon", "adamw8bit",
    }  # fmt: skip
