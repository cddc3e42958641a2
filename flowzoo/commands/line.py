"""The command line: every command with its options, and how it is read."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro
from tyro import conf

from flowzoo.commands import algorithms as algorithms_command
from flowzoo.commands import completion as completion_command
from flowzoo.commands import dataset as dataset_command
from flowzoo.commands import doctor as doctor_command
from flowzoo.commands import eval as eval_command
from flowzoo.commands import export as export_command
from flowzoo.commands import filter as filter_command
from flowzoo.commands import list as list_command
from flowzoo.commands import matrix as matrix_command
from flowzoo.commands import new as new_command
from flowzoo.commands import play as play_command
from flowzoo.commands import report as report_command
from flowzoo.commands import sandbox as sandbox_command
from flowzoo.commands import sft as sft_command
from flowzoo.commands import swap as swap_command
from flowzoo.commands import train as train_command
from flowzoo.commands.mistakes import check_words, one_line
from flowzoo.errors import UsageError

COMMANDS = {
    name: f"flowzoo.commands.{name}"
    for name in (
        "list", "algorithms", "play", "eval", "filter", "sft", "train", "matrix", "report", "swap",
        "export", "dataset", "new", "doctor", "sandbox", "completion",
    )
}  # fmt: skip
"""Command -> its module."""

Command = (
    Annotated[list_command.Options, conf.subcommand("list")]
    | Annotated[algorithms_command.Options, conf.subcommand("algorithms")]
    | Annotated[play_command.Options, conf.subcommand("play")]
    | Annotated[eval_command.Options, conf.subcommand("eval")]
    | Annotated[filter_command.Options, conf.subcommand("filter")]
    | Annotated[sft_command.Options, conf.subcommand("sft")]
    | Annotated[train_command.Options, conf.subcommand("train")]
    | Annotated[matrix_command.Options, conf.subcommand("matrix")]
    | Annotated[report_command.Options, conf.subcommand("report")]
    | Annotated[swap_command.Options, conf.subcommand("swap")]
    | Annotated[export_command.Options, conf.subcommand("export")]
    | Annotated[dataset_command.Options, conf.subcommand("dataset")]
    | Annotated[new_command.Options, conf.subcommand("new")]
    | Annotated[doctor_command.Options, conf.subcommand("doctor")]
    | Annotated[sandbox_command.Options, conf.subcommand("sandbox")]
    | Annotated[completion_command.Options, conf.subcommand("completion")]
)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """PettingZoo for LLM workflows: play, evaluate and train multi-role workflows."""

    command: conf.OmitSubcommandPrefixes[conf.OmitArgPrefixes[Command]]
    verbose: bool = False
    """Log what happens to stderr, and show the traceback of an error."""
    version: bool = False
    """Print the version and exit."""


_STYLE = (conf.CascadeSubcommandArgs, conf.FlagCreatePairsOff)
"""How options are spelled on every level."""


def parse(words: tuple[str, ...]) -> CommandLine:
    """The command line, over the file of settings that it may name.

    Raises:
        UsageError: it cannot be read.
        SystemExit: help was asked for (status 0).
    """
    check_words(words, COMMANDS)
    filed = train_command.with_file(words) if words[:1] == ("train",) else None
    read: partial[CommandLine] = partial(
        tyro.cli, CommandLine, prog="flowzoo", args=words or ("--help",), config=_STYLE
    )
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return read() if filed is None else read(default=CommandLine(filed))
    except SystemExit as end:
        if end.code:
            raise UsageError(one_line(said.getvalue())) from None
        raise
