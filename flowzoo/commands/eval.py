"""`flowzoo eval`: accuracy, tokens and parse rates of a workflow under given policies."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from flowzoo.agents.evaluation import comparison, power
from flowzoo.agents.evaluation.majority import Match, cost_of, read_summary, vote, votes_for
from flowzoo.agents.evaluation.protocol import (
    check_comparable,
    problem_fields,
    protocol_differences,
    protocol_line,
    protocol_of,
    reading_of,
)
from flowzoo.agents.evaluation.published import read_sets
from flowzoo.agents.evaluation.summary import FEWEST_SEEDS, INDICES, is_evaluation, kappa
from flowzoo.agents.evaluation.usage import (
    Budget,
    BudgetError,
    Meter,
    prices_by_policy,
    read_prices,
)
from flowzoo.commands.policies import (
    PolicyOptions,
    check_policy_map,
    engine_dtypes,
    model_records,
    open_policy_map,
    with_budget,
)
from flowzoo.commands.problems import ProblemOptions, build_played, chosen_problems, grading_of
from flowzoo.commands.progress.shown import episode_progress, to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import check_count, check_folder, program_name
from flowzoo.envs import EpisodeRecord, Problem, Workflow
from flowzoo.envs.settings import read_settings
from flowzoo.errors import UsageError
from flowzoo.files import read_json

if TYPE_CHECKING:
    from flowzoo.agents import PolicyMap
    from flowzoo.agents.evaluation.alarms import Remedies
    from flowzoo.agents.evaluation.evaluate import EvaluationDirectory

Summary = Mapping[str, Any]
"""Results of an evaluation by name, as in `summary.json`, or a part of them."""


@dataclass(frozen=True, slots=True)
class SpendingOptions:
    """Costs and limits."""

    prices: Path | None = None
    """TOML file with the prices of models in dollars per million tokens, as "MODEL" = { input =
    0.15, output = 0.6 }; prints the cost of every role."""
    max_cost: float | None = None
    """Stop after this cost in dollars, of all --sets together, by --prices; the same command with a
    higher limit resumes."""
    max_tokens_total: int | None = None
    """Stop after this number of tokens of prompts and replies, of all --sets together."""


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo eval`."""

    workflow: str | None = field(default=None, metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `voting` or `voting_v0`, module:Class or file.py:Class."""
    env: str | None = None
    """Instead of a workflow, a PettingZoo AEC environment with text: `package.module:function` or
    `path/to/file.py:function`; `--options` are also arguments of the function."""
    problems: ProblemOptions = field(default_factory=ProblemOptions)
    policies: PolicyOptions = field(default_factory=PolicyOptions)
    spending: SpendingOptions = field(default_factory=SpendingOptions)
    n: int | None = None
    """Number of distinct problems; default: all of a data file, 500 of a generator."""
    sets: tuple[str, ...] = ()
    """Sets to evaluate one after another, each in a folder of --out: published ones by name, such
    as aime24 or aime24=DATA for your copy of its rows, with the sampling, samples and reply length
    that they were reported under where you give none; and others as NAME=DATA."""
    samples: int | None = None
    """Episodes per problem; the accuracy is the mean over all of them. Default: 1, or that of a
    published set."""
    detect: float | None = None
    """Play nothing: print how many problems and samples find a difference of this many points to
    another policy, by the variance of --against or a stated assumption."""
    majority: bool = False
    """Take a majority vote over the answers of a problem's episodes; the last line is the accuracy
    of the votes. The task decides which answers are equal; ties go to the first."""
    like: Path | None = None
    """Folder of another workflow's evaluation (its --out): every problem gets as many votes as an
    episode there has calls (or tokens). Replaces --samples and --majority."""
    match: Match = "calls"
    """Budget that --like matches: calls or output tokens."""
    against: Path | None = None
    """Folder of an earlier evaluation (its --out) of the same problems: prints the difference in
    accuracy with its interval, the numbers of problems won and lost, and what differs between the
    protocols."""
    out: Path | None = None
    """Directory for `episodes.jsonl` and `summary.json`; the same command resumes there.
    Default: results are not saved."""
    json: bool = False
    """Print the summary as one JSON object before the last line."""


class EvaluationPlan(NamedTuple):
    """A validated command line, before a model is loaded."""

    options: Options
    workflow: Workflow
    problems: Sequence[Problem]
    settings: Summary
    """Settings that affect the results."""


def run(options: Options) -> int:
    """Evaluate and print, every set after all are checked."""
    plans = {name: prepare(part) for name, part in split_sets(options).items()}
    if options.detect is not None:
        print("\n".join(line for plan in plans.values() for line in detection_lines(plan)))
        return 0
    meter = meter_of(options.spending)
    summaries: dict[str, Summary] = {}
    try:  # what is finished is printed, also where a later set stops
        for name, plan in plans.items():
            meter = meter.successor()
            summaries[name] = play(plan, meter)
            if not options.json:
                print_results(name, plan, summaries[name])
    finally:
        if options.json and summaries:
            results = {
                name: {"settings": plans[name].settings, **summary}
                for name, summary in summaries.items()
            }
            print(json.dumps({"sets": results} if options.sets else results[""]))
            for name, summary in summaries.items():
                print_results(name, plans[name], summary)
    if len(summaries) > 1:
        mean = sum(accuracy_of(summary) for summary in summaries.values()) / len(summaries)
        print(f"mean of {len(summaries)} sets {percent(mean)}")
    return 0


def print_results(name: str, plan: EvaluationPlan, summary: Summary) -> None:
    """Print the results of a set, or of the only evaluation; with --json the lines alone."""
    options, workflow = plan.options, plan.workflow
    if not options.json:
        on = name or f"{workflow.task.name}, split {options.problems.which_split()}"
        print_summary(summary, f"{workflow.name} on {on}")
    if result := summary.get("against"):
        if result["differs"] and not options.json:
            print(f"protocols differ: {', '.join(result['differs'])}")
        print(comparison_line(result))
    if options.out:
        page = f"{program_name()} report {shlex.quote(str(options.out))}"
        print(f"episodes saved in {options.out / 'episodes.jsonl'}; their page: {page}")
    print(f"{name}: {accuracy_line(summary)}" if name else accuracy_line(summary))


def split_sets(options: Options) -> dict[str, Options]:
    """The evaluation of every set, by its name, or the only one; published values are filled in."""
    if not options.sets:
        return {"": options}
    problems = options.problems
    for name, value in (
        ("--data", problems.data),
        ("--env", options.env),
        ("--like", options.like),
    ):
        if value is not None:
            raise UsageError(f"--sets names the data of every evaluation: leave {name} out")
    parts: dict[str, Options] = {}
    for name, (published, data) in read_sets(options.sets).items():
        task = published.task if published else problems.task
        if problems.task not in (None, task):
            raise UsageError(f"--task {problems.task} is not that of {name}, {task}: leave it out")
        policies, samples, settings = options.policies, options.samples, problems.options
        if published:
            sampling = {
                field: getattr(published.protocol, field)
                for field in ("temperature", "top_p", "top_k", "max_tokens")
                if getattr(policies, field) is None
            }
            policies = replace(policies, **sampling)
            samples = published.protocol.samples if samples is None else samples
            given = read_settings(settings)
            settings += tuple(
                word for word in published.options if word.partition("=")[0] not in given
            )
        parts[name] = replace(
            options,
            sets=(f"{name}={data}",), policies=policies, samples=samples,
            problems=replace(problems, task=task, data=data, options=settings),
            out=options.out and options.out / name,
            against=options.against and options.against / name,
        )  # fmt: skip
    return parts


def detection_lines(plan: EvaluationPlan) -> Iterator[str]:
    """Numbers of problems and samples that find a difference of `detect` points."""
    options, points = plan.options, plan.options.detect or 0.0
    variance, source = power.EVEN, "difficulties spread evenly from 0 to 100 %"
    if options.against:
        groups = comparison.scores_in(plan.problems, options.against)
        variance, source = power.score_variance(groups), f"the variance in {options.against}"
    yield (
        f"a difference of {points:g} points, paired by problem, two-sided 5 %, found with "
        f"{100 * power.POWER:.0f} % probability, by {source} and a correlation of "
        f"{power.CORRELATION:g} between policies:"
    )
    played = plan.options.samples or 1
    for samples in sorted({1, 4, 16, played}):
        needed = power.problem_count(points, variance, samples)
        yield f"  {samples} per problem: {needed:,} problems, {needed * samples:,} episodes"
    gap = power.detectable_points(len(plan.problems), variance, played)
    yield f"these {len(plan.problems):,} problems with {played} each find {gap:.1f} points"


def prepare(options: Options) -> EvaluationPlan:
    """Check the options and choose the problems."""
    sampling = options.policies.sampling(1)
    policies = replace(
        options.policies,
        temperature=sampling.temperature, top_p=sampling.top_p, top_k=sampling.top_k,
    )  # fmt: skip
    samples = 1 if options.samples is None else options.samples
    options = replace(options, policies=policies, samples=samples)
    check_options(options)
    specs = options.policies.specs
    workflow = build_played("eval", options.workflow, options.env, options.problems, specs)
    check_policy_map(workflow, options.policies)
    options = replace(options, policies=with_budget(workflow, options.policies, earlier(options)))
    problems = chosen_problems(workflow, options.problems.which_split(), options.n)
    if options.against:
        protocol = {"reading": reading_of(workflow), **problem_fields(workflow, problems)}
        comparison.check_pair(protocol, options.against)
    return EvaluationPlan(options, workflow, problems, json_settings(options, workflow))


def meter_of(spending: SpendingOptions) -> Meter:
    """A meter with the limits of the options."""
    return Meter(budget=Budget(spending.max_cost, spending.max_tokens_total))


def play(evaluation: EvaluationPlan, meter: Meter | None = None) -> dict[str, Any]:
    """Play the missing episodes and return the summary; the default meter is new."""
    from flowzoo.agents.evaluation.evaluate import EvaluationDirectory

    options, workflow, problems, settings = evaluation
    meter = meter or meter_of(options.spending)
    grading = grading_of(workflow)
    # More problems or samples extend the existing ones, which stay the same.
    grows = {"n": len(problems) if options.n is None else 500, "samples": 1}
    with (
        closing(EvaluationDirectory(options.out, settings, grading, grows))
        if options.out
        else nullcontext() as store,
        interruptible(
            lambda: kept_episodes(store, len(problems) * (options.samples or 1)), BudgetError
        ),
    ):
        if store is not None and store.finished:
            total = "" if options.like else f" of {len(problems) * (options.samples or 1)}"
            saved = f"{len(store.finished)}{total} episodes are saved"
            to_stderr(f"resuming {store.folder}: {saved}")
        with open_policy_map(workflow, options.policies, options.problems.seed) as policy_map:
            return measure(options, workflow, policy_map, problems, store, meter)


def check_options(options: Options) -> None:
    """Reject invalid options before anything is loaded."""
    check_count("n", options.n)
    check_count("samples", options.samples)
    if options.out:
        check_folder("out", options.out)
    spending = options.spending
    if spending.max_cost is not None and spending.prices is None:
        raise UsageError("--max-cost needs the prices of the models: add --prices FILE")
    meter_of(spending)
    if spending.prices is not None:
        read_prices(spending.prices)
    if options.like:
        if options.samples != 1 or options.majority:
            raise UsageError("--like sets the number of votes: leave out --samples and --majority")
        read_summary(options.like)
    if options.against:
        read_summary(options.against)


def earlier(options: Options) -> dict[str, Any]:
    """Policies in the settings of the evaluation that the command continues."""
    if options.out is None or not is_evaluation(options.out):
        return {}
    return read_json(options.out / "run.json")["settings"].get("policies", {})


def kept_episodes(store: EvaluationDirectory | None, total: int) -> str:
    """Note on the saved part of a stopped evaluation."""
    if store is None:
        return "nothing was saved; with --out every finished episode is saved"
    saved = f"{len(store.finished)} of {total} episodes are saved in {store.folder}"
    return f"{saved}; the same command resumes"


def measure(
    options: Options,
    workflow: Workflow,
    policy_map: PolicyMap,
    problems: Sequence[Problem],
    store: EvaluationDirectory | None,
    meter: Meter,
) -> dict[str, Any]:
    """Summary of the evaluation with its protocol and, if requested, the vote."""
    from flowzoo.agents.evaluation.alarms import episode_alarms
    from flowzoo.agents.evaluation.evaluate import evaluate

    seed, spending = options.problems.seed, options.spending
    if spending.prices is not None:
        meter.prices = prices_by_policy(policy_map, read_prices(spending.prices))
    published = next((row for row, _ in read_sets(options.sets).values()), None)

    def play(samples: int) -> tuple[list[EpisodeRecord], dict[str, Any]]:
        with episode_progress(len(problems) * samples, "evaluating") as advance:
            records, summary = evaluate(
                workflow, policy_map, problems,
                samples=samples, seed=seed, store=store, on_episode=advance, meter=meter,
            )  # fmt: skip
        protocol = protocol_of(workflow, policy_map, problems, samples=samples, seed=seed)
        if published:
            protocol["published"] = published.describe(protocol)
        return records, {**summary, "protocol": protocol}

    samples = options.samples or 1 if options.like is None else count_votes(options, play)
    records, whole = play(samples)
    remedies = remedies_of(options, workflow)
    whole["alarms"] = [alarm._asdict() for alarm in episode_alarms(records, remedies)]
    if left_out := getattr(workflow.task, "unusable", 0):
        whole["unusable"] = left_out
    if options.majority or options.like:
        whole["majority"] = votes = vote(workflow, problems, records)
        whole[f"maj@{votes['samples']}"] = votes["accuracy"]
        if votes["interval"]:
            whole["intervals"][f"maj@{votes['samples']}"] = list(votes["interval"])
    if options.like:
        whole["like"] = {"evaluation": str(options.like), "match": options.match}
    if options.against:
        before = comparison.results_in(problems, options.against)
        after = comparison.problem_results(problems, whole, records)
        compared = comparison.paired_comparison(before, after)
        other = read_summary(options.against)["protocol"]
        differs = protocol_differences(other, json.loads(json.dumps(whole["protocol"])))
        whole["against"] = {**compared, "evaluation": str(options.against), "differs": differs}
    if store is not None:
        store.save_summary(whole)
    return whole


def remedies_of(options: Options, workflow: Workflow) -> Remedies:
    """Remedies for alarms: command line settings, and the warm start of the model."""
    from flowzoo.agents.evaluation.alarms import Remedies, warm_start_command

    problems, policies = options.problems, options.policies
    kind, _, path = policies.policy[0].partition(":")
    model = path if len(policies.policy) == 1 and kind in ("hf", "vllm") else ""
    name = "" if options.env or problems.program else options.workflow or ""
    data = [f"data={problems.data}"] if problems.data else []
    command = warm_start_command(name, problems.task, [*problems.options, *data], model)
    return Remedies(policies.lengths, bool(workflow.examples), command, problems.options)


def count_votes(options: Options, play: Callable[[int], tuple[object, Summary]]) -> int:
    """Number of votes with the cost of an episode of the matched evaluation."""
    budget = read_summary(options.like)  # type: ignore[arg-type] - the caller has looked
    # The first sample of every problem is one of the votes and measures the cost of a vote.
    _, summary = play(1)
    check_comparable(summary["protocol"], budget["protocol"], str(options.like))
    return votes_for(budget, options.match, cost_of(summary, options.match))


def json_settings(options: Options, workflow: Workflow) -> dict[str, Any]:
    """Settings that affect the results, as plain values."""
    settings: dict[str, Any] = asdict(options)
    for name in ("out", "json", "spending", "against", "detect"):
        del settings[name]
    if not options.sets:  # as in older records
        del settings["sets"]
    policies, problems = settings["policies"], settings["problems"]
    # Caches do not affect results, and finished episodes do not depend on `max_calls`.
    del policies["engine_memory"], policies["endpoints"], problems["max_calls"]
    if options.policies.endpoints:
        settings["endpoints"] = {
            name: {field: getattr(server, field) for field in ("url", "extra_body", "without")}
            for name, server in options.policies.endpoint_table().items()
            if any(spec.endswith(f"@{name}") for spec in options.policies.specs)
        }
    if problems["program"] is None:  # as in older records
        del problems["program"]
    policies["engine_dtype"] = engine_dtypes(workflow, options.policies)
    settings["models"] = model_records(workflow, options.policies)
    if workflow.functions:
        settings["functions"] = dict(workflow.functions)
    return json.loads(json.dumps(settings, default=str))


def accuracy_line(summary: Summary) -> str:
    """`accuracy 50.0 % (5/10), 95 % interval 23.7 to 76.3`, for episodes or votes.

    Of a game it is the mean score.
    """
    # The numbers are the mean score, the episodes with score 1, and all episodes.
    ends = summary["intervals"].get("accuracy")
    if vote := summary.get("majority"):
        share = f"{percent(vote['accuracy'])} ({vote['right']}/{vote['problems']})"
        line, ends = f"majority@{vote['samples']} accuracy {share}", vote["interval"]
    elif "pay" in summary:
        line = f"score {percent(summary['accuracy'])} of {summary['episodes']} episodes"
    else:
        share = f"{percent(summary['accuracy'])} ({summary['right']}/{summary['episodes']})"
        line = f"accuracy {share}"
    if summary.get("unknown"):
        line += f", {len(summary['unknown']):,} unknown"
    return f"{line}, 95 % interval {between(ends)}" if ends else line


def accuracy_of(summary: Summary) -> float:
    """The accuracy of the votes if it voted, else of the episodes."""
    return summary.get("majority", summary)["accuracy"]


def comparison_line(result: Summary) -> str:
    """Difference from an earlier evaluation, with the numbers of problems."""
    line = f"against {result['evaluation']}: {100 * result['difference']:+.1f} points"
    if result["interval"]:
        low, high = (100 * end for end in result["interval"])
        line += f" (95 % interval {low:+.1f} to {high:+.1f})"
    line += f"; {result['won']} problems won, {result['lost']} lost, {result['tied']} tied"
    return f"{line}, {result['unpaired']} without a pair" if result["unpaired"] else line


def print_summary(summary: Summary, title: str) -> None:
    """Print one row per role, the workflow's facts, the protocol and alarms."""
    console = Console()
    console.print(role_table(summary, f"{title}; below a rate its 95 % interval"))
    for line in summary_lines(summary):
        console.print(line, highlight=False)
    print(protocol_line(summary["protocol"]))
    for alarm in summary["alarms"]:
        print(f"warning: {alarm['text']}")


def role_table(summary: Summary, title: str) -> Table:
    """One row per role."""
    # Narrow padding: all columns fit into 80 characters.
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1))
    table.add_column("role", no_wrap=True)
    worth = "pay" if "pay" in summary else "role score"
    for name in ("calls", worth, "reward", "strict", "lenient", "tokens", "cut off"):
        table.add_column(name, justify="right")
    for role, row in summary["roles"].items():
        ends = summary["intervals"]["roles"][role]
        table.add_row(
            role,
            f"{row['calls']:,.0f}",
            *own_worth(summary, role),
            *(with_ends(row[name], ends[name]) for name in ("strict", "lenient")),
            tokens(row["tokens"]),
            with_ends(row["truncated"], ends["truncated"]),
        )
    if judge := summary["usage"].get("judge"):
        output, calls = judge["output_tokens"], judge["calls"]
        mean = None if output is None else output / calls
        table.add_row("judge", f"{calls:,.0f}", *[""] * 4, tokens(mean), "")
    return table


def own_worth(summary: Summary, role: str) -> tuple[str, str]:
    """Role score and reward of a role in percent, or its pay and reward as numbers."""
    row, ends = summary["roles"][role], summary["intervals"]
    if "pay" not in summary:
        score = with_ends(row["role_score"], ends["roles"][role].get("role_score"))
        return score, percent(row["reward"])
    limits = ends.get("pay", {}).get(role)
    between_ends = f"\n{limits[0]:.3g} to {limits[1]:.3g}" if limits else ""
    return f"{summary['pay'][role]:.3f}{between_ends}", f"{row['reward']:.3f}"


def summary_lines(summary: Summary) -> Iterator[str]:
    """Lines below the table of roles."""
    roles, ends = summary["roles"].items(), summary["intervals"]
    long = [f"{role} {percent(row['shortened'])}" for role, row in roles if row["shortened"] > 0]
    if long:
        yield f"prompts over their budget, shortened: {', '.join(long)}"
    hidden = {*INDICES, *summary["shares"]}
    facts = [f"{name} {fact:.3f}" for name, fact in summary["facts"].items() if name not in hidden]
    if facts:
        yield f"means of facts: {', '.join(facts)}"
    for name, share in summary["shares"].items():
        limits = between(ends["shares"][name])
        yield f"{name} {percent(share['share'])} of {share['of']:,} ({limits})"
    if judge := summary.get("judge"):
        yield judge_line(judge)
    if summary["samples"] > 1 and "pay" not in summary:
        yield ", ".join(
            f"{name} {percent(value)}" + (f" ({between(ends[name])})" if name in ends else "")
            for name, value in summary.items()
            if name.startswith(("avg@", "pass@", "maj@"))
        )
        spread = summary["seed_spread"]
        line = f"one episode per problem, over {spread['seeds']} seeds: standard deviation "
        line += f"{100 * spread['std']:.1f} points, {between((spread['low'], spread['high']))} %"
        few = spread["seeds"] < FEWEST_SEEDS
        yield f"{line}; take {FEWEST_SEEDS} samples or more" if few else line
    if summary.get("unusable"):
        yield f"unusable rows, left out: {summary['unusable']}"
    unknown = summary.get("unknown", {})
    for reason in dict.fromkeys(unknown.values()):
        names = [name for name, cause in unknown.items() if cause == reason]
        noun = "episode" if len(names) == 1 else "episodes"
        yield f"unknown, not counted: {len(names):,} {noun} ({reason}): {', '.join(names)}"
    counts = f"{tokens(summary['tokens'])} output tokens, {tokens(summary['prompt_tokens'])} prompt"
    yield f"per episode: {summary['calls']:.2f} calls, {counts} tokens"
    yield from usage_lines(summary["usage"], summary["path_tokens"])
    if summary["uncounted"] and summary["tokens"] is not None:
        yield f"calls without token counts: {summary['uncounted']:,}"


def usage_lines(usage: Summary, path: float | None) -> Iterator[str]:
    """Critical path of an episode, as far as it was measured, and cost and latency by role."""
    lengths = [f"{path:.1f} output tokens"] if path is not None else []
    if seconds := usage["critical_path"]:
        lengths.append(f"median {seconds['median']:.2f} and 95th percentile {seconds['p95']:.2f} s")
    if lengths:
        yield f"critical path, the longest call of every phase added up: {', '.join(lengths)}"
    roles = usage["roles"].items()
    if "cost" in usage:
        paid = [*roles, ("judge", usage["judge"])] if "judge" in usage else roles
        costs = [f"{role} {dollars(row['cost'])}" for role, row in paid]
        yield f"cost {dollars(usage['cost'])}: {', '.join(costs)}"
    if usage["latency"]:
        yield "seconds per call, median and 95th percentile: " + ", ".join(
            f"{role} {row['latency']['median']:.2f} and {row['latency']['p95']:.2f}"
            for role, row in roles
            if row["latency"]
        )


def dollars(cost: float | None) -> str:
    """An amount of money; n/a if tokens were not counted."""
    return "n/a" if cost is None else f"${cost:,.4f}"


def judge_line(judge: Summary) -> str:
    """Verdicts of the judge, and their agreement with ground truth if known."""
    line = f"judge: {judge['verdicts']:,} verdicts, {judge['unreadable']:,} unreadable"
    if "compared" in judge:
        beyond = kappa(judge["agreement"], judge["passed"], judge["right"])
        share = f"{percent(judge['agreement'])} of {judge['compared']:,} (kappa {beyond})"
        line += f"; agrees with the role score on {share}"
    return line


def tokens(count: float | None) -> str:
    """A mean number of tokens; n/a if tokens were not counted."""
    return "n/a" if count is None else f"{count:.1f}"


def between(ends: Sequence[float]) -> str:
    """An interval of shares, in percent: `23.7 to 76.3`."""
    return " to ".join(f"{100 * end:.1f}" for end in ends)


def with_ends(share: float, ends: Sequence[float] | None) -> str:
    """A rate with its interval below it, in few characters."""
    below = "-".join(f"{100 * end:.1f}".removesuffix(".0") for end in ends or ())
    return f"{percent(share)}\n{below}" if below else percent(share)


def percent(share: float) -> str:
    """A rate as a percentage; a dash for None."""
    return f"{100 * share:.1f} %" if share == share else "-"
