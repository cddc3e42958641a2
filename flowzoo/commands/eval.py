"""`flowzoo eval`: accuracy, tokens and parse rates of a workflow under given policies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowzoo.agents.evaluation.majority import Match
from flowzoo.commands.policies import PolicyOptions
from flowzoo.commands.problems import ProblemOptions
from flowzoo.commands.stopping import interruptible
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from flowzoo.agents.evaluation.alarms import Remedies


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo eval`."""

    workflow: str | None = field(default=None, metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, or module:Class."""
    env: str | None = None
    """In place of a workflow, a PettingZoo AEC environment of text: `package.module:function` or
    `path/to/file.py:function`; `--options` are arguments of that function, too."""
    problems: ProblemOptions = field(default_factory=ProblemOptions)
    policies: PolicyOptions = field(default_factory=PolicyOptions)
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
    """Budget that --like makes equal: calls, or output tokens."""
    out: Path | None = None
    """Directory for `episodes.jsonl` and `summary.json`; the same command resumes there.
    Without it nothing is saved."""
    json: bool = False
    """Print the summary as one JSON object before the last line."""


def run(options: Options) -> int:
    """Evaluate and print."""
    from flowzoo.agents.evaluation.evaluate import EvaluationDirectory
    from flowzoo.commands.policies import check_policy_map, open_policy_map, with_budget
    from flowzoo.commands.problems import build_played, chosen_problems, grading_of

    check_options(options)
    workflow = build_played(
        "eval", options.workflow, options.env, options.problems, options.policies.specs
    )
    split = options.problems.which_split()
    check_policy_map(workflow, options.policies)
    options = replace(options, policies=with_budget(workflow, options.policies, earlier(options)))
    problems = chosen_problems(workflow, split, options.n)
    settings = json_settings(options, workflow)
    grading = grading_of(workflow)
    # More problems and more samples are what is there, and others: the first ones are the same.
    grows = {"n": len(problems) if options.n is None else 500, "samples": 1}
    store = EvaluationDirectory(options.out, settings, grading, grows) if options.out else None
    with (
        interruptible(lambda: kept_episodes(store, len(problems) * options.samples)),
        open_policy_map(workflow, options.policies, options.problems.seed) as policy_map,
    ):
        summary = measure(options, workflow, policy_map, problems, store)
    if options.json:
        print(json.dumps({"settings": settings, **summary}))
    else:
        print_summary(summary, f"{workflow.name} on {workflow.task.name}, split {split}")
    if options.out:
        print(f"episodes saved in {options.out / 'episodes.jsonl'}")
    print(accuracy_line(summary))
    return 0


def check_options(options: Options) -> None:
    """Refuse options before anything is loaded."""
    from flowzoo.agents.evaluation.majority import read_summary
    from flowzoo.commands.shared import check_count, check_folder

    check_count("n", options.n)
    check_count("samples", options.samples)
    if options.out:
        check_folder("out", options.out)
    if options.like:
        if options.samples != 1 or options.majority:
            raise UsageError("--like sets the number of votes: leave out --samples and --majority")
        read_summary(options.like)


def earlier(options: Options) -> dict[str, Any]:
    """The policies of the evaluation that the command continues, as its settings."""
    from flowzoo.agents.evaluation.summary import is_evaluation

    if options.out is None or not is_evaluation(options.out):
        return {}
    record = json.loads((options.out / "run.json").read_text(encoding="utf-8"))
    return record["settings"].get("policies", {})


def kept_episodes(store: Any, total: int) -> str:
    """Note on the saved part of a stopped evaluation."""
    if store is None:
        return "nothing was saved; with --out every finished episode is kept"
    return (
        f"{len(store.finished)} of {total} episodes are kept in {store.folder}; the same command "
        "plays the rest"
    )


def measure(
    options: Options, workflow: Any, policy_map: Any, problems: Sequence[Any], store: Any
) -> dict[str, Any]:
    """The summary of the evaluation with its protocol and, where asked for, the vote."""
    from flowzoo.agents.evaluation.alarms import episode_alarms
    from flowzoo.agents.evaluation.evaluate import evaluate
    from flowzoo.agents.evaluation.majority import vote
    from flowzoo.agents.evaluation.protocol import protocol_of
    from flowzoo.commands.progress.shown import episode_progress

    seed = options.problems.seed

    def play(samples: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        protocol = protocol_of(workflow, policy_map, problems, samples=samples, seed=seed)
        with episode_progress(len(problems) * samples, "evaluating") as advance:
            records, summary = evaluate(
                workflow, policy_map, problems,
                samples=samples, seed=seed, store=store, on_episode=advance,
            )  # fmt: skip
        return records, summary, protocol

    samples = options.samples if options.like is None else votes(options, play)
    records, summary, protocol = play(samples)
    remedies = remedies_of(options, workflow)
    alarms = [alarm._asdict() for alarm in episode_alarms(records, remedies)]
    whole = {**summary, "protocol": protocol, "alarms": alarms}
    if left_out := getattr(workflow.task, "unusable", 0):
        whole["unusable"] = left_out
    if options.majority or options.like:
        whole["majority"] = vote(workflow, problems, records)
    if options.like:
        whole["like"] = {"evaluation": str(options.like), "match": options.match}
    if store is not None:
        store.close(whole)
    return whole


def remedies_of(options: Options, workflow: Any) -> Remedies:
    """Remedies for alarms: settings of the command line, and the warm start for its model."""
    from flowzoo.agents.evaluation.alarms import Remedies, warm_start_command

    problems, policies = options.problems, options.policies
    models = [
        spec.partition(":")[2] for spec in policies.policy if spec.startswith(("hf:", "vllm:"))
    ]
    model = models[0] if len(policies.policy) == len(models) == 1 else ""
    name = "" if options.env or problems.program else options.workflow or ""
    data = [f"data={problems.data}"] if problems.data else []
    command = warm_start_command(name, problems.task, [*problems.options, *data], model)
    return Remedies(policies.lengths, bool(workflow.examples), command)


def votes(options: Options, play: Any) -> int:
    """Number of votes that cost as much as an episode of the matched evaluation."""
    from flowzoo.agents.evaluation.majority import cost_of, read_summary, votes_for
    from flowzoo.agents.evaluation.protocol import check_comparable

    budget = read_summary(options.like)  # type: ignore[arg-type] - the caller has looked
    # The first sample of every problem is one of the votes, and tells what a vote costs.
    _, summary, protocol = play(1)
    check_comparable(protocol, budget["protocol"], str(options.like))
    return votes_for(budget, options.match, cost_of(summary, options.match))


def json_settings(options: Options, workflow: Any) -> dict[str, Any]:
    """The settings that decide the numbers, as plain values."""
    from flowzoo.commands.policies import engine_dtypes

    settings = json.loads(json.dumps(asdict(options), default=str))
    del settings["out"], settings["json"]
    # Caches decide no number, and episodes that end do not depend on the most calls.
    del settings["policies"]["engine_memory"], settings["problems"]["max_calls"]
    if options.problems.program is None:  # as in records from before there were any
        del settings["problems"]["program"]
    dtypes = engine_dtypes(workflow, options.policies)
    settings["policies"]["engine_dtype"] = dtypes
    if workflow.functions:
        settings["functions"] = dict(workflow.functions)
    return settings


def accuracy_line(summary: Mapping[str, Any]) -> str:
    """`accuracy 50.0 % (5/10), 95 % interval 23.7 to 76.3`, of the episodes or of the votes."""
    # The numbers are the mean score, the episodes that scored 1, and all.
    if "majority" in summary:
        vote = summary["majority"]
        share = f"{percent(vote['accuracy'])} ({vote['right']}/{vote['problems']})"
        line, ends = f"majority@{vote['samples']} accuracy {share}", vote["interval"]
    else:
        line = f"accuracy {percent(summary['accuracy'])}"
        line += f" ({summary['right']}/{summary['episodes']})"
        ends = summary["intervals"].get("accuracy")
    return f"{line}, 95 % interval {between(ends)}" if ends else line


def print_summary(summary: Mapping[str, Any], title: str) -> None:
    """Print one row per role, the workflow's facts, the protocol and alarms."""
    from rich.console import Console

    from flowzoo.agents.evaluation.protocol import protocol_line

    console = Console()
    console.print(role_table(summary, f"{title}; below a rate its 95 % interval"))
    for line in summary_lines(summary):
        console.print(line, highlight=False)
    print(protocol_line(summary["protocol"]))
    for alarm in summary["alarms"]:
        print(f"warning: {alarm['text']}")


def role_table(summary: Mapping[str, Any], title: str) -> Any:
    """One row per role."""
    from rich import box
    from rich.table import Table

    # Narrow padding: all columns fit into 80 characters.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("role", no_wrap=True)
    for name in ("calls", "role score", "reward", "strict", "lenient", "tokens", "cut off"):
        table.add_column(name, justify="right")
    for role, row in summary["roles"].items():
        ends = summary["intervals"]["roles"][role]
        table.add_row(
            role,
            f"{row['calls']:,.0f}",
            with_ends(row["role_score"], ends.get("role_score")),
            percent(row["reward"]),
            *(with_ends(row[name], ends[name]) for name in ("strict", "lenient")),
            tokens(row["tokens"]),
            with_ends(row["truncated"], ends["truncated"]),
        )
    return table


def summary_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    """Lines below the table of roles."""
    roles, ends = summary["roles"].items(), summary["intervals"]
    long = [f"{role} {percent(row['shortened'])}" for role, row in roles if row["shortened"] > 0]
    if long:
        yield f"prompts over their budget, shortened: {', '.join(long)}"
    facts = [f"{name} {value:.3f}" for name, value in summary["facts"].items()]
    if facts:
        yield f"means of facts: {', '.join(facts)}"
    for name, share in summary["shares"].items():
        limits = between(ends["shares"][name])
        yield f"{name} {percent(share['share'])} of {share['of']:,} ({limits})"
    if summary["samples"] > 1:
        yield ", ".join(
            f"{name} {percent(value)}" + (f" ({between(ends[name])})" if name in ends else "")
            for name, value in summary.items()
            if name.startswith(("avg@", "pass@"))
        )
    if summary.get("unusable"):
        yield f"rows left out, of no use: {summary['unusable']}"
    if summary.get("ungraded"):
        names = ", ".join(summary["ungraded"])
        yield f"not graded, and not counted: {names} (the sandbox failed; the log says why)"
    counts = f"{tokens(summary['tokens'])} output tokens, {tokens(summary['prompt_tokens'])} prompt"
    yield f"per episode: {summary['calls']:.2f} calls, {counts} tokens"
    if summary["uncounted"] and summary["tokens"] is not None:
        yield f"calls without token counts: {summary['uncounted']:,}"


def tokens(count: float | None) -> str:
    """A mean number of tokens; n/a if tokens were not counted."""
    return "n/a" if count is None else f"{count:.1f}"


def between(ends: Sequence[float]) -> str:
    """An interval of shares, in percent: `23.7 to 76.3`."""
    return " to ".join(f"{100 * end:.1f}" for end in ends)


def with_ends(share: float, ends: Sequence[float] | None) -> str:
    """A share with its interval below it, in few characters."""
    if not ends:
        return percent(share)
    low, high = (f"{100 * end:.1f}".removesuffix(".0") for end in ends)
    return f"{percent(share)}\n{low}-{high}"


def percent(share: float) -> str:
    """A share as a percentage; a dash where there is none."""
    return f"{100 * share:.1f} %" if share == share else "-"
