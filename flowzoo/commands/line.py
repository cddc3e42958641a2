"""The command line: every command with its purpose, and its parser."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from flowzoo.arguments import Common, arguments_of, build, check_given, help_text, parse_words
from flowzoo.declared import check_declared
from flowzoo.errors import UsageError, unknown

COMMANDS = {
    "list": "List workflows with their roles, tasks and presets, and tasks, policies and datasets.",
    "algorithms": (
        "List the algorithms, or describe some in full: `flowzoo algorithms dr_mas paper`."
    ),
    "play": "Play episodes of a workflow and print their transcripts.",
    "prompts": "Print a workflow's prompt texts, as a file for --prompts, or its roles' chats.",
    "eval": "Evaluate a workflow: accuracy, tokens and parse rates; the last line is the accuracy.",
    "regrade": "Judge stored episodes again with today's grader: what changed, and by how much.",
    "leaderboard": (
        "Evaluate all combinations of workflows, policies and tasks in a file; repeat the command "
        "to resume."
    ),
    "filter": "Measure the pass rate of every problem, for `flowzoo train --difficulty FILE`.",
    "sft": (
        "Fine-tune a workflow's policies on recorded replies of experts or their own best replies."
    ),
    "train": "Train a workflow's policies; repeat the command to resume a stopped run.",
    "matrix": (
        "Train every cell of an experiment matrix in parallel; repeat the command to resume."
    ),
    "report": "Write the HTML report of a run, a matrix or an evaluation.",
    "why": (
        "Find what broke a run: run it again with settings put back; repeat the command to resume."
    ),
    "swap": "Evaluate a finished run with each pair of roles' policies exchanged.",
    "export": (
        "Write a trained policy as a model folder that transformers, vLLM and peft load.\n\n"
        "Its README.md is a model card for the Hub, with accuracies and the report's findings."
    ),
    "serve": "Serve a workflow as a model with an OpenAI-compatible API.",
    "dataset": "Write recorded episodes as a dataset for `datasets` and TRL.",
    "new": "Create a package with your own workflow or task and passing tests.",
    "doctor": "Check this machine (training stack, GPU, vLLM, Docker, sandbox tier), or a model.",
    "sandbox": "Build the sandbox image, or check this machine's sandbox against attacks.",
    "completion": "Print the completions of a shell: `source <(flowzoo completion bash)`.",
}
"""Purpose by command; the module of that name has its `Options` and `run`."""


DESCRIPTION = "PettingZoo for LLM workflows: play, evaluate and train multi-role workflows."


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line."""

    command: Any
    """The `Options` of the command."""
    verbose: bool


def parse(line: Sequence[str]) -> CommandLine:
    """Parse a command line; only the module of the named command is imported.

    Raises:
        UsageError: the command line is invalid.
        SystemExit: after help (status 0).
    """
    name, rest = split_command(line)
    if name == "help":  # as of git and many others
        return parse([*rest, "--help"])
    if name is None:
        parse_words(arguments_of(Common), rest, "flowzoo")
        print(help_text("flowzoo", DESCRIPTION, arguments_of(Common), COMMANDS), end="")
        raise SystemExit(0)
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    read_config = getattr(module_of(name), "read_config", None)
    actions = actions_of(options_of(name))
    if not actions:
        return parse_command(f"flowzoo {name}", COMMANDS[name], options_of(name), rest, read_config)
    action, rest = split_command(rest)
    if action in actions:
        options = actions[action]
        parsed = parse_command(f"flowzoo {name} {action}", options.__doc__, options, rest)
        return CommandLine(options_of(name)(parsed.command), parsed.verbose)
    if action is not None:
        raise unknown(f"command of `flowzoo {name}`", action, actions)
    if not parse_words(arguments_of(Common), rest, f"flowzoo {name}").get("help"):
        raise UsageError(f"flowzoo {name} needs a command: {' or '.join(actions)}")
    purposes = {action: options.__doc__ for action, options in actions.items()}
    print(help_text(f"flowzoo {name}", COMMANDS[name], arguments_of(Common), purposes), end="")
    raise SystemExit(0)


def parse_command(
    command: str,
    purpose: str,
    options: type,
    rest: Sequence[str],
    read_config: Callable[[str], object] | None = None,
) -> CommandLine:
    """Parse the arguments of one command; `read_config` reads the file that --config names."""
    values = parse_words([*arguments_of(options), *arguments_of(Common)], rest, command)
    config = values.get("config")
    defaults = read_config(config) if config and read_config else None
    if values.pop("help", False):
        arguments = [*arguments_of(options, defaults), *arguments_of(Common)]
        print(help_text(command, purpose, arguments), end="")
        raise SystemExit(0)
    check_given(arguments_of(options, defaults), values, command)
    verbose = values.pop("verbose", False)
    parsed = build(options, values, defaults)
    check_declared(parsed, lambda name: f"--{name.replace('_', '-')}")
    return CommandLine(parsed, verbose)


def split_command(line: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off the first argument that is not an option, or None."""
    name = next((word for word in line if not word.startswith("-")), None)
    rest = list(line)
    if name is not None:
        rest.remove(name)  # arguments before it are options without values
    return name, rest


def module_of(command: str) -> Any:
    """The module of a command."""
    return importlib.import_module(f"flowzoo.commands.{command}")


def options_of(command: str) -> Any:
    """The class of a command's options."""
    return module_of(command).Options


def actions_of(options: object) -> dict[str, Any]:
    """Classes of a command's subcommands by name."""
    hint = get_type_hints(options).get("action")
    return {kind.__name__.lower(): kind for kind in get_args(hint)}
