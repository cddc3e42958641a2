"""`flowzoo eval`: accuracy, tokens and parse rates of a workflow under given policies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from tyro import conf

from flowzoo.agents.evaluation.majority import Match
from flowzoo.commands.policies import PolicyOptions
from flowzoo.commands.problems import ProblemOptions
from flowzoo.commands.stopping import interruptible
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `flowzoo eval`; what it does stands in `flowzoo.commands.line`."""

    workflow: Annotated[str | None, conf.Positional, conf.arg(metavar="[WORKFLOW]")] = None
    """Name of the workflow, e.g. `voting` or `voting_v0`, or module:Class."""
    env: str | None = None
    """In place of a workflow, a PettingZoo AEC environment of text: `package.module:function` or
    `path/to/file.py:function`; `--options` are arguments of that function, too."""
    problems: Annotated[ProblemOptions, conf.OmitArgPrefixes] = field(
        default_factory=ProblemOptions
    )
    policies: Annotated[PolicyOptions, conf.OmitArgPrefixes] = field(default_factory=PolicyOptions)
    n: int | None = None
    """Number of distinct problems; by default all of a data file and 500 of a generator."""
    samples: int = 1
    """Episodes per problem; the accuracy is the mean over all of them."""
    majority: bool = False
    """Let the answers of a problem's episodes vote: the last line is the accuracy of the votes.
    Equal answers are those the task takes for equal; ties go to the first."""
    like: Path | None = None
    """Folder of an evaluation with --out, of a workflow: as many votes per problem as one of its
    episodes has calls (or tokens). Takes the place of --samples and --majority."""
    match: Match = "calls"
    """What --like makes equal: calls, or output tokens."""
    out: Path | None = None
    """Directory for `episodes.jsonl` and `summary.json`; the same command resumes there.
    Without it nothing is saved."""
    json: bool = False
    """Print the summary as one JSON object before the last line."""


def run(options: Options) -> int:
    """Evaluate and print."""
    from flowzoo.agents.evaluation.evaluate import EvaluationDirectory
    from flowzoo.agents.evaluation.majority import read_summary
    from flowzoo.agents.evaluation.protocol import protocol_line
    from flowzoo.commands.policies import check_roster, open_roster
    from flowzoo.commands.problems import chosen_problems, grading_of
    from flowzoo.commands.shared import check_count, check_folder

    check_count("n", options.n)
    check_count("samples", options.samples)
    if options.out:
        check_folder("out", options.out)
    if options.like and (options.samples != 1 or options.majority):
        raise UsageError("--like sets the number of votes: leave out --samples and --majority")
    if options.like:
        read_summary(options.like)  # before anything is loaded
    workflow = build_played(options)
    split = options.problems.which_split()
    check_roster(workflow, options.policies)
    problems = chosen_problems(workflow, split, options.n)
    settings = json_settings(options)
    if workflow.functions:
        settings["functions"] = dict(workflow.functions)
    grading = grading_of(workflow)
    # More problems and more samples are what is there, and others: the first ones are the same.
    grows = {"n": len(problems) if options.n is None else 500, "samples": 1}
    store = EvaluationDirectory(options.out, settings, grading, grows) if options.out else None
    with (
        interruptible(lambda: kept_episodes(store, len(problems) * options.samples)),
        open_roster(workflow, options.policies, options.problems.seed) as roster,
    ):
        summary = measure(options, workflow, roster, problems, store)
    if options.json:
        print(json.dumps({"settings": settings, **summary}))
    else:
        print_tables(summary, f"{workflow.name} on {workflow.task.name}, split {split}")
        print(protocol_line(summary["protocol"]))
    if options.out:
        print(f"episodes saved in {options.out / 'episodes.jsonl'}")
    print(accuracy_line(summary))
    return 0


def kept_episodes(store: Any, wanted: int) -> str:
    """What an evaluation that is stopped has saved."""
    if store is None:
        return "nothing was saved; with --out every finished episode is kept"
    return (
        f"{len(store.finished)} of {wanted} episodes are kept in {store.folder}; the same command "
        "plays the rest"
    )


def build_played(options: Options) -> Any:
    """The workflow, or the one around an environment.

    Raises:
        UsageError: neither or both were named, or settings of tasks came with an environment.
    """
    from flowzoo.commands.problems import build_workflow
    from flowzoo.envs.external.workflow import make_aec_workflow
    from flowzoo.envs.settings import add_setting

    if (options.workflow is None) == (options.env is None):
        raise UsageError("name either a workflow, e.g. `flowzoo eval voting`, or --env")
    if options.env is None:
        return build_workflow(str(options.workflow), options.problems)
    problems = options.problems
    for name in ("task", "data", "sandbox"):
        if getattr(problems, name) is not None:
            raise UsageError(f"--{name} is a setting of tasks: leave it out with --env")
    settings = problems.settings()
    add_setting(settings, "max_calls", problems.max_calls)
    return make_aec_workflow(options.env, preset=problems.preset, seed=problems.seed, **settings)


def measure(
    options: Options, workflow: Any, roster: Any, problems: Sequence[Any], store: Any
) -> dict[str, Any]:
    """The summary of the evaluation with its protocol and, where asked for, the vote."""
    from flowzoo.agents.evaluation.evaluate import evaluate
    from flowzoo.agents.evaluation.majority import vote
    from flowzoo.agents.evaluation.protocol import protocol_of
    from flowzoo.commands.shared import episode_progress

    seed = options.problems.seed

    def play(samples: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        protocol = protocol_of(workflow, roster, problems, samples=samples, seed=seed)
        with episode_progress(len(problems) * samples, "evaluating") as advance:
            records, summary = evaluate(
                workflow, roster, problems,
                samples=samples, seed=seed, store=store, on_episode=advance,
            )  # fmt: skip
        return records, summary, protocol

    samples = options.samples if options.like is None else votes(options, play)
    records, summary, protocol = play(samples)
    whole = {**summary, "protocol": protocol}
    if left_out := getattr(workflow.task, "unusable", 0):
        whole["unusable"] = left_out
    if options.majority or options.like:
        whole["majority"] = vote(workflow, problems, records)
    if options.like:
        whole["like"] = {"evaluation": str(options.like), "match": options.match}
    if store is not None:
        store.close(whole)
    return whole


def votes(options: Options, play: Any) -> int:
    """How many votes cost what an episode of the evaluation to be matched does."""
    from flowzoo.agents.evaluation.majority import read_summary, votes_for
    from flowzoo.agents.evaluation.protocol import check_comparable

    budget = read_summary(options.like)  # type: ignore[arg-type] - the caller has looked
    # The first sample of every problem is one of the votes, and tells what a vote costs.
    _, one, protocol = play(1)
    check_comparable(protocol, budget["protocol"], str(options.like))
    return votes_for(budget, options.match, one[options.match])


def json_settings(options: Options) -> dict[str, Any]:
    """The settings that decide the numbers, as plain values."""
    settings = json.loads(json.dumps(asdict(options), default=str))
    del settings["out"], settings["json"]
    if options.env is None:
        del settings["env"]  # as in evaluations from before there were any
    if not settings["problems"]["skip_unusable"]:  # as evaluations from before it have it
        del settings["problems"]["skip_unusable"]
    del settings["problems"]["max_calls"]  # episodes that end do not depend on it
    return settings


def accuracy_line(summary: Mapping[str, Any]) -> str:
    """`accuracy 50.0 % (5/10)`: mean score, episodes that scored 1, and all; or of the votes."""
    if "majority" in summary:
        vote = summary["majority"]
        share = f"{100 * vote['accuracy']:.1f} % ({vote['right']}/{vote['problems']})"
        return f"majority@{vote['samples']} accuracy {share}"
    percent = 100 * summary["accuracy"]
    return f"accuracy {percent:.1f} % ({summary['right']}/{summary['episodes']})"


def print_tables(summary: Mapping[str, Any], title: str) -> None:
    """One row per role, then the workflow's facts."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Narrow padding: all columns fit into 80 characters.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    names = ("calls", "own truth", "reward", "strict", "lenient", "tokens", "cut off")
    table.add_column("role", no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for role, row in summary["roles"].items():
        shares = (row["truth"], row["reward"], row["strict"], row["lenient"])
        table.add_row(
            role,
            f"{row['calls']:,.0f}",
            *(percent(share) for share in shares),
            f"{row['tokens']:.1f}",
            percent(row["truncated"]),
        )
    console = Console()
    console.print(table)
    long = [
        f"{role} {percent(row['shortened'])}"
        for role, row in summary["roles"].items()
        if row["shortened"] > 0
    ]
    if long:
        told = f"prompts over their budget, shortened: {', '.join(long)}"
        console.print(told, highlight=False)
    facts = [f"{name} {value:.3f}" for name, value in summary["facts"].items()]
    if facts:
        console.print("means of facts: " + ", ".join(facts), highlight=False)
    for name, one in summary["shares"].items():
        console.print(f"{name} {percent(one['share'])} of {one['of']:,}", highlight=False)
    if summary["samples"] > 1:
        shares = [
            f"{name} {percent(value)}"
            for name, value in summary.items()
            if name.startswith(("avg@", "pass@"))
        ]
        console.print(", ".join(shares), highlight=False)
    if summary.get("unusable"):
        console.print(f"rows left out, of no use: {summary['unusable']}", highlight=False)
    if summary.get("ungraded"):
        told = f"not graded, and not counted: {', '.join(summary['ungraded'])}"
        console.print(f"{told} (the sandbox failed; the log says why)", highlight=False)
    console.print(
        f"per episode: {summary['calls']:.2f} calls, {summary['tokens']:.1f} output tokens, "
        f"{summary['prompt_tokens']:.1f} prompt tokens",
        highlight=False,
    )


def percent(share: float) -> str:
    """A share as a percentage; a dash where there is none."""
    return f"{100 * share:.1f} %" if share == share else "-"
