"""Does a team of one model beat a lone agent with the same information, tools, turns and tokens?

    python -m studies.team_ideas [PROBLEMS]

Pairs of a team and a lone agent, both played by the untrained pocket model of the task: the lone
agent may use the same tools and as many calls, and sees everything. Writes
docs/data/team-ideas.json with the result of every problem (1: solved), and a 95 % paired bootstrap
over problems. Another call measures what the file has not.

A lone agent is one context at a time. Where members of a team neither talk nor differ, one agent
that is asked again in a new context draws from the same distribution; `one at a time` is the number
of tokens that it needs if it stops at the first reply that passes, at the team's accuracy.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.evaluation.evaluate import evaluate
from flowzoo.agents.problems import distinct_problems
from flowzoo.agents.specs import make_policy
from flowzoo.baselines.stats import paired_gain
from flowzoo.envs import EpisodeRecord, make_workflow
from flowzoo.files import read_json, write_json

OUT = Path("docs/data/team-ideas.json")
MOST_TOKENS = 48
PROBLEMS = 200


class Arm(NamedTuple):
    """A side of a comparison."""

    words: str
    workflow: str
    settings: Mapping[str, Any]


class Idea(NamedTuple):
    """A reason for a team, with the two sides."""

    title: str
    task: str
    options: Mapping[str, Any]
    team: Arm
    lone: Arm


def read_ideas() -> list[Idea]:
    """The ideas of `team_ideas.toml`."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return [
        Idea(row["title"], row["task"], row["options"], Arm(**row["team"]), Arm(**row["lone"]))
        for row in tomllib.loads(text)["ideas"]
    ]


def play(idea: Idea, arm: Arm, count: int) -> dict[str, Any]:
    """Accuracy, costs and the result of every problem of one side."""
    workflow = make_workflow(arm.workflow, idea.task, **idea.options, **arm.settings)
    policy = make_policy("pocket", oracle=workflow, sampling=Sampling(max_tokens=MOST_TOKENS))
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    problems = distinct_problems(workflow.task, "validation", count)
    records, summary = evaluate(workflow, policy_map, problems)
    result = {name: summary[name] for name in ("accuracy", "calls", "tokens", "prompt_tokens")}
    result |= {"side": arm.words, "facts": summary["facts"], "solved": solved(records)}
    if "needed" in summary["facts"]:
        result["tokens one at a time"] = tokens_needed(records)
    return result


def solved(records: Sequence[EpisodeRecord]) -> str:
    """One character a problem: 1 if it was solved."""
    return "".join(str(int(record.score >= 1.0)) for record in records)


def tokens_needed(records: Sequence[EpisodeRecord]) -> float:
    """Mean number of tokens up to the first reply that passed."""
    counts = [
        sum(call.output_tokens or 0 for call in record.calls[: int(record.facts["needed"])])
        for record in records
    ]
    return sum(counts) / len(counts)


def measure(idea: Idea, count: int) -> dict[str, Any]:
    """Both sides and their difference."""
    team, lone = play(idea, idea.team, count), play(idea, idea.lone, count)
    before, after = ([float(char) for char in side["solved"]] for side in (lone, team))
    gain = paired_gain(before, after)
    return {"idea": idea.title, "task": idea.task, "team": team, "lone": lone} | gain._asdict()


def is_of(result: Mapping[str, Any], idea: Idea, count: int) -> bool:
    """True if an earlier call has measured the idea on as many problems."""
    sides = (result["team"]["side"], result["lone"]["side"], len(result["team"]["solved"]))
    return sides == (idea.team.words, idea.lone.words, count)


def row(result: Mapping[str, Any]) -> list[str]:
    """One line of the table."""
    team, lone = result["team"], result["lone"]
    low, mean, high = (100 * result[name] for name in ("low", "mean", "high"))
    single = team.get("tokens one at a time")
    return [
        result["idea"], result["task"], team["side"], lone["side"],
        f"{100 * team['accuracy']:.1f} %", f"{100 * lone['accuracy']:.1f} %",
        *(f"{team[name]:.1f}, {lone[name]:.1f}" for name in ("calls", "tokens")),
        f"{mean:+.1f} ({low:+.1f} to {high:+.1f})".replace("-", "−"),
        "" if single is None else f"{single:.1f}",
    ]  # fmt: skip


def main(count: int) -> None:
    """Measure every idea, write the file and print the table."""
    columns = [
        "idea", "task", "team", "lone agent", "team solves", "lone agent solves", "calls",
        "tokens of an answer", "difference, points", "one at a time",
    ]  # fmt: skip
    earlier = read_json(OUT)["results"] if OUT.is_file() else []
    results: list[dict[str, Any]] = []
    for idea in read_ideas():
        same = [result for result in earlier if is_of(result, idea, count)]
        results.append(same[0] if same else measure(idea, count))
        print(" | ".join(row(results[-1])), flush=True)
    data = {
        "command": f"python -m studies.team_ideas {count}",
        "columns": columns,
        "align": "|---|---|---|---|---:|---:|---:|---:|---|---:|",
        "rows": [row(result) for result in results],
        "results": results,
    }
    write_json(OUT, data)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PROBLEMS)
