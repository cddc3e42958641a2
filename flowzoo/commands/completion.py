"""`flowzoo completion`: what lets a shell complete commands, options and choices.

The parser writes the script (tyro), which imports nothing of flowzoo when it completes. Shells take
a line for one candidate, so what the parser says of an option is put on one line here.
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Literal

from tyro import conf

Shell = Literal["bash", "zsh", "fish"]
_TABLE = "COMPLETION_SPEC = "
"""What the line begins with that has all commands and options, as a Python literal."""
_NEWLINE = re.compile(r"\\{1,2}n")
"""A line break within that literal; fish doubles its backslash."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `flowzoo completion`; what it does stands in `flowzoo.commands.line`."""

    shell: Annotated[Shell, conf.Positional]
    """The shell; docs/install.md says where its completions belong."""


def run(options: Options) -> int:
    """Print the script; the exit status is 0."""
    print(completions(options.shell), end="")
    return 0


def completions(shell: Shell) -> str:
    """The script that completes the command line in a shell."""
    import tyro

    from flowzoo.commands.line import COMMANDS, STYLE, options_of, shape_of

    every = (
        Annotated[options_of(one), conf.subcommand(one)]  # pyrefly: ignore[invalid-annotation]
        for one in COMMANDS
    )
    said = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(said):
        words = ("--tyro-print-completion", shell)
        tyro.cli(shape_of(reduce(or_, every)), prog="flowzoo", args=words, config=STYLE)
    table = re.compile(rf"^{_TABLE}.*$", re.MULTILINE)
    return table.sub(lambda line: _NEWLINE.sub(" ", line[0]), said.getvalue())
