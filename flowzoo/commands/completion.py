"""`flowzoo completion`: what lets a shell complete commands, options and choices.

The parser writes the script (tyro), which imports nothing of flowzoo when it completes. Shells take
a line for one candidate, so what the parser says of an option is put on one line here.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated, Literal

from tyro import conf

Shell = Literal["bash", "zsh", "fish"]
_TABLE = "COMPLETION_SPEC = "
"""What the line begins with that has all commands and options, as a Python literal."""
_NEWLINE = re.compile(r"\\{1,2}n")
"""A line break within that literal; fish doubles its backslash."""


@dataclass(frozen=True, slots=True)
class Options:
    """Print the completions of a shell: `source <(flowzoo completion bash)`."""

    shell: Annotated[Shell, conf.Positional]
    """The shell; docs/install.md says where its completions belong."""


def run(options: Options) -> int:
    """Print the script; the exit status is 0."""
    print(completions(options.shell), end="")
    return 0


def completions(shell: Shell) -> str:
    """The script that completes the command line in a shell.

    Another process asks the parser for it: what reads the command line knows this command, so this
    command may not import it.
    """
    command = [sys.executable, "-m", "flowzoo", "--tyro-print-completion", shell]
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    table = re.compile(rf"^{_TABLE}.*$", re.MULTILINE)
    return table.sub(lambda line: _NEWLINE.sub(" ", line[0]), done.stdout)
