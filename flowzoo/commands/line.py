"""The command line: every command with its options, and how it is read."""

from __future__ import annotations

import contextlib
import importlib
import io
from dataclasses import dataclass, field, make_dataclass
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any

import tyro
from tyro import conf

from flowzoo.commands.mistakes import check_words, one_line
from flowzoo.envs.settings import check_finite
from flowzoo.errors import UsageError

COMMANDS = {
    "list": "List workflows with their roles, tasks and presets; tasks, policies, data sets.",
    "algorithms": (
        "List the algorithms, or say everything about some: `flowzoo algorithms dr_mas paper`."
    ),
    "play": "Play episodes of a workflow and print their transcripts.",
    "prompts": "Print a workflow's prompt texts, as a file for --prompts, or its roles' chats.",
    "eval": "Evaluate a workflow: accuracy, tokens and parse rates; the last line is the accuracy.",
    "filter": "Measure the pass rate of every problem; `flowzoo train` takes the file with bounds.",
    "sft": (
        "Teach a workflow's policies recorded replies: of experts, or of their own best episodes."
    ),
    "train": (
        "Train a workflow's policies; run the same command again to resume a run that was stopped."
    ),
    "plan": ("Say what fits which GPUs, from the arguments of `flowzoo train`; nothing is loaded."),
    "matrix": (
        "Train every cell of an experiment matrix, several at a time; repeat the command to go on."
    ),
    "report": "Write the report of a run, or of a matrix with a page for each of its runs.",
    "swap": (
        "Evaluate a finished run with the policies of two roles exchanged, for every pair of them."
    ),
    "export": (
        "Write a trained policy as a model folder that transformers, vLLM and peft load.\n\n"
        "Its README.md is a model card for the hub, with accuracies and the report's verdicts."
    ),
    "dataset": "Write recorded episodes as a data set that `datasets` and TRL load.",
    "new": (
        "Write a package with a workflow or a task of your own, which passes its tests as it is."
    ),
    "doctor": "Check this machine: Python, training stack, GPU, vLLM, Docker and the sandbox tier.",
    "sandbox": "Build the sandbox's image, or check the sandbox against attacks on this machine.",
    "completion": "Print the completions of a shell: `source <(flowzoo completion bash)`.",
}
"""Command -> what it does, for help. Its module, of the same name, has its `Options` and `run`."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What was read."""

    command: Any
    """The `Options` of the command."""
    verbose: bool


STYLE = (conf.CascadeSubcommandArgs, conf.FlagCreatePairsOff, conf.HelptextFromCommentsOff)
"""How options are spelled on every level. Help is what docstrings say: to look for comments, too,
takes 20 ms."""


def parse(words: tuple[str, ...]) -> CommandLine:
    """The command line, over the file of settings that it may name.

    Where it names a command, only that one is imported and read, and where it names none, none is:
    all of them take a quarter of a second.

    Raises:
        UsageError: it cannot be read.
        SystemExit: help was asked for (status 0).
    """
    name = check_words(words, COMMANDS, options_of)
    asked: dict[str, Any] = {
        "prog": "flowzoo",
        "args": words or ("--help",),
        "description": "PettingZoo for LLM workflows: play, evaluate and train multi-role "
        "workflows.",
    }
    if name is None:
        every = (
            Annotated[
                make_dataclass(one, []),  # pyrefly: ignore[invalid-annotation]
                conf.subcommand(one, description=what),
            ]
            for one, what in COMMANDS.items()
        )
        shape = shape_of(reduce(or_, every))
    else:
        rest = list(words)
        rest.remove(name)  # words before it are options without values
        shape = shape_of(options_of(name))
        asked = {"prog": f"flowzoo {name}", "args": rest, "description": COMMANDS[name]}
        if name in ("train", "plan"):
            filed = module_of(name).with_file(rest)
            asked |= {} if filed is None else {"default": shape(filed)}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            read = tyro.cli(shape, config=STYLE, **asked)
    except SystemExit as end:
        if end.code:
            raise UsageError(one_line(said.getvalue())) from None
        raise
    check_finite(read.command, lambda name: f"--{name.replace('_', '-')}")
    return CommandLine(read.command, read.verbose)


@cache
def shape_of(options: Any) -> Any:
    """A class of a command's options and those of every command.

    The parser looks for help that is not given here in the source of the class and of its bases,
    and `Generic` stands in a long file.
    """
    whole = conf.OmitSubcommandPrefixes[conf.OmitArgPrefixes[options]]
    verbose = "Log what happens to stderr, and show the traceback of an error."
    fields = [
        ("command", Annotated[whole, conf.arg(name="")]),
        ("verbose", Annotated[bool, conf.arg(help=verbose)], field(default=False)),
        (
            "version",
            Annotated[bool, conf.arg(help="Print the version and exit.")],
            field(default=False),
        ),
    ]
    return make_dataclass("CommandLine", fields)


def module_of(command: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"flowzoo.commands.{command}")


def options_of(command: str) -> Any:
    """The class of a command's options."""
    return module_of(command).Options
