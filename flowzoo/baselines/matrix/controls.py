"""Controls at equal inference: majority votes of a trained single agent.

    python -m flowzoo.baselines.matrix.controls --run CONTROL_RUN --like WORKFLOW_RUN

Both runs are finished, on the same held-out problems.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.majority import MATCHES, Match, vote, votes_for
from flowzoo.agents.evaluation.protocol import check_comparable
from flowzoo.agents.evaluation.summary import attempt_summary, attempts_of
from flowzoo.aliases import MetricRow
from flowzoo.arguments import read_arguments
from flowzoo.baselines.run.reading import RunData, like_path, run_label
from flowzoo.baselines.stats import paired_gain
from flowzoo.baselines.training.finished import FinishedRun, open_finished, read_finished
from flowzoo.envs import EpisodeRecord
from flowzoo.errors import FlowzooError, UsageError, check_choice
from flowzoo.files import read_json, write_json
from flowzoo.permission import PERMISSION


@dataclass(frozen=True, slots=True)
class Options:
    """Measure a finished single-agent run with majority votes at a workflow's cost per problem."""

    run: Path
    """Run directory of the single agent."""
    like: Path
    """Run directory of the workflow."""
    match: tuple[Match, ...] = MATCHES
    """Costs that are to be equal."""
    trust: bool = False
    """Load code that the runs' records name."""


def match_control(
    control: Path, workflow: Path, matches: Sequence[Match] = MATCHES
) -> dict[str, Any]:
    """Measure the control at equal inference and write `like_path`, unless that is done."""
    # A workflow of four calls is not compared with one call: the control's last policy answers
    # every held-out problem k times and the answers vote, with k such that this costs as many calls
    # as an episode of the workflow, and once more for as many output tokens.
    if not matches:
        raise UsageError(f"match: expected one or several of {', '.join(MATCHES)}, got none")
    for match in matches:
        check_choice("match", match, MATCHES)
    single, team = read_finished(control), read_finished(workflow)
    record = {"control": last_evaluation(single), "workflow": last_evaluation(team)}
    path = like_path(control, workflow)
    done = read_json(path) if path.is_file() else {}
    if record.items() <= done.items() and set(matches) <= set(done["votes"]):
        return done
    first, second = ((run.summary or {})["protocol"] for run in (single, team))
    check_comparable(first, second, str(workflow))
    counts = {
        match: votes_for(record["workflow"], match, record["control"][match]) for match in matches
    }
    with open_finished(control) as run:
        write_json(path, record | _measure(run, counts, team.scores[-1].tolist()))
    return read_json(path)


def last_evaluation(run: RunData) -> MetricRow:
    """Accuracy of a run's last policies and the cost of their episodes."""
    row = run.evaluations[-1]
    return {
        "run": run_label(run.folder),
        "workflow": str((run.summary or {})["workflow"]),
        "step": row["step"],
        "accuracy": row["eval/reward/mean"],
        "calls": row["eval/calls/mean"],
        "tokens": row.get("eval/tokens/mean"),
    }


def _measure(
    run: FinishedRun, counts: Mapping[Match, int], workflow: Sequence[float]
) -> dict[str, Any]:
    policy_map, most = run.policy_map, max(counts.values())
    records = run.evaluation.play(policy_map, most)
    return {
        "votes": {
            match: _vote(run, first_samples(records, most, k), workflow)
            for match, k in counts.items()
        },
        "attempts": attempt_summary(records),
        "protocol": run.evaluation.protocol(policy_map, most),
    }


def _vote(
    run: FinishedRun, records: Sequence[EpisodeRecord], workflow: Sequence[float]
) -> dict[str, Any]:
    result = vote(run.evaluation.workflow, run.evaluation.problems, records)
    result["k"] = result.pop("samples")
    scores = dict(zip(attempts_of(records), result["scores"], strict=True))
    result["scores"] = [scores.get(name, result["accuracy"]) for name in run.evaluation.names]
    result["gain"] = paired_gain(result["scores"], workflow)._asdict()
    return result


def first_samples(
    records: Sequence[EpisodeRecord], samples: int, count: int
) -> list[EpisodeRecord]:
    """The first `count` of the `samples` consecutive episodes of every problem."""
    return [record for index, record in enumerate(records) if index % samples < count]


def main() -> None:
    """Read the command line, measure, and print the path of the result."""
    options: Options = read_arguments(Options)
    try:
        with PERMISSION.of(sys.argv):
            match_control(options.run, options.like, options.match)
    except FlowzooError as error:
        raise SystemExit(f"error: {error}") from error
    sys.stdout.write(f"{like_path(options.run, options.like)}\n")


if __name__ == "__main__":
    main()
