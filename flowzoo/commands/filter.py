"""`flowzoo filter`: pass rate of every problem, to filter training problems."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flowzoo.agents.evaluation.summary import mean
from flowzoo.agents.identity import compare_records
from flowzoo.commands.policies import (
    PolicyOptions,
    check_policy_map,
    model_records,
    open_policy_map,
)
from flowzoo.commands.problems import ProblemOptions, build_workflow, chosen_problems, grading_of
from flowzoo.commands.progress.shown import episode_progress, to_stderr
from flowzoo.commands.progress.stopping import interruptible
from flowzoo.commands.shared import check_count, check_folder
from flowzoo.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """Arguments of `flowzoo filter`."""

    workflow: str | None = field(default=None, metadata={"positional": "[WORKFLOW]"})
    """Name of the workflow, e.g. `single` or `voting_v0`, module:Class or file.py:Class."""
    out: Path = field(kw_only=True)
    """Output file with the pass rates, one line per problem; the same command resumes it."""
    problems: ProblemOptions = field(default_factory=lambda: ProblemOptions(split="train"))
    policies: PolicyOptions = field(default_factory=PolicyOptions)
    n: int | None = None
    """Number of distinct problems; default: all of a data file, 500 of a generator."""
    samples: int = 8
    """Episodes per problem."""
    low: float = 0.1
    """Lowest pass rate of the problems counted in the last line."""
    high: float = 0.9
    """Highest pass rate of the problems counted in the last line."""
    json: bool = False
    """Print the counts as one JSON object before the last line."""


def run(options: Options) -> int:
    """Measure and print."""
    from flowzoo.baselines.training.difficulty import histogram, measure, read_rates, within

    within([], options.low, options.high)
    check_count("n", options.n)
    check_count("samples", options.samples)
    check_folder("out", options.out.parent, options.out)
    if options.out.is_dir():
        raise UsageError(f"--out {options.out} is a directory: name a file, e.g. rates.jsonl in it")
    workflow = build_workflow(options.workflow, options.problems, options.policies.specs)
    split = options.problems.which_split()
    check_policy_map(workflow, options.policies)
    problems = chosen_problems(workflow, split, options.n)
    grading_of(workflow)
    models = model_records(workflow, options.policies)
    recorded = read_rates(options.out)[0].get("models", {})
    compare_records(recorded, models, f"the file {options.out}")
    seed = options.problems.seed
    note = f"finished problems are saved in {options.out}; the same command resumes"
    with (
        interruptible(lambda: note),
        open_policy_map(workflow, options.policies, seed) as policy_map,
        episode_progress(len(problems) * options.samples, "measuring") as advance,
    ):
        rates = measure(
            workflow, policy_map, problems, options.out,
            samples=options.samples, seed=seed, models=models, on_episode=advance,
        )  # fmt: skip
    count, bars = len(within(rates, options.low, options.high)), histogram(rates)
    if options.json:
        middle = mean([rate.rate for rate in rates])
        counts = {"problems": len(rates), "kept": count, "mean": middle, "histogram": bars}
        print(json.dumps(counts))
    else:
        print_histogram(bars)
    if unknown := len(problems) - len(rates):
        to_stderr(f"{unknown} problems have no pass rate: a verdict on each is unknown")
    print(f"pass rates of {len(rates)} problems are in {options.out}")
    print(f"{count}/{len(rates)} problems have a pass rate in [{options.low}, {options.high}]")
    return 0


def print_histogram(bars: Sequence[int]) -> None:
    """Print a bar for every tenth of the pass rate."""
    longest = max(bars) or 1
    for tenth, count in enumerate(bars):
        bar = "█" * round(40 * count / longest)
        print(f"{tenth / 10:.1f} to {(tenth + 1) / 10:.1f}  {count:6d}  {bar}")
