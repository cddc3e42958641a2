"""`flowzoo prompts`: a workflow's prompt texts as an editable file, or its roles' chats."""

import json
from dataclasses import dataclass, field

from flowzoo.commands.problems import ProblemOptions, build_workflow
from flowzoo.envs import Workflow
from flowzoo.envs.episode.effects import resolve
from flowzoo.envs.episode.episode import Episode
from flowzoo.envs.readers.judgments import scripted_judge


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo prompts`."""

    workflow: str | None = field(default=None, metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, module:Class or file.py:Class."""
    problems: ProblemOptions = field(default_factory=ProblemOptions)
    chats: bool = False
    """Print the first chat of every role on one problem, as sent to its model, instead of the
    texts. The workflow's experts play the other roles."""


def run(options: Options) -> int:
    """Print texts or chats; the exit status is 0."""
    workflow = build_workflow(options.workflow, options.problems)
    if options.chats:
        print_chats(workflow, options.problems.which_split())
    else:
        print(texts_file(workflow), end="")
    return 0


def texts_file(workflow: Workflow) -> str:
    """The texts as a TOML file for `--prompts`."""
    lines = [f"# {workflow.name} on task {workflow.task.name}; use this file with --prompts FILE."]
    if workflow.task.instruction:
        lines += ["", f"instruction = {quote_toml(workflow.task.instruction)}"]
    lines += ["", "[prompts]"]
    lines += [f"{json.dumps(name)} = {quote_toml(text)}" for name, text in workflow.prompts.items()]
    lines += ["", "[system]"]
    system = dict(workflow.system)
    for role in workflow.role_counts():
        mark = "" if role in system else "# "
        lines.append(f"{mark}{role} = {quote_toml(system.get(role, 'You are …'))}")
    return "\n".join(lines) + "\n"


def quote_toml(text: str) -> str:
    """A text as a TOML string, multi-line if needed."""
    if "\n" not in text or "'''" in text:
        return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"'''\n{text}'''"


def print_chats(workflow: Workflow, split: str) -> None:
    """Print the first chat of every role in an episode of the experts."""
    from rich.console import Console

    console = Console(highlight=False)
    problem = workflow.task.problem(0, split)
    episode, respond = Episode(workflow, problem), workflow.responder(problem)
    printed = set[str]()
    while not episode.done:
        if episode.effects:
            jobs = episode.pending_effects
            episode.resolve(resolve(workflow.task, jobs, workflow.judge or scripted_judge))
            continue
        for turn in episode.waiting:
            role = workflow.agents[turn.agent][0]
            if role not in printed:
                printed.add(role)
                console.rule(role, align="left")
                for message in turn.observe():
                    console.print(f"[bold]{message['role']}[/bold]")
                    console.print(message["content"] + "\n", markup=False, soft_wrap=True)
            episode.reply(turn.agent, respond(role, turn.observe()))
