"""Comparison of evaluations on the same problems: of two in pairs, and as a leaderboard."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from flowzoo.agents.evaluation.evaluate import read_episodes
from flowzoo.agents.evaluation.intervals import paired_interval
from flowzoo.agents.evaluation.majority import read_summary
from flowzoo.agents.evaluation.protocol import SAME, check_comparable
from flowzoo.agents.evaluation.summary import attempts_of, mean, means_by
from flowzoo.envs import EpisodeRecord, Problem
from flowzoo.errors import UsageError


def problem_results(
    problems: Sequence[Problem], summary: Mapping[str, Any], records: Sequence[EpisodeRecord]
) -> dict[str, float]:
    """The score of every problem, by its id: that of its vote, else the mean of its episodes."""
    samples = range(summary["protocol"]["samples"])
    keys = {f"{problem.id}#{sample}" for problem in problems for sample in samples}
    played = [record for record in records if record.episode in keys]
    means = means_by((record.problem, record.score) for record in played)
    order = [problem.id for problem in problems if problem.id in means]
    if "majority" in summary:
        return dict(zip(order, summary["majority"]["scores"], strict=True))
    return {name: means[name] for name in order}


def check_pair(protocol: Mapping[str, object], against: Path) -> None:
    """Check that an evaluation with this protocol can be compared with the one in `against`.

    Raises:
        UsageError: `against` has no finished evaluation, one of other problems, or one that reads
            replies by other rules.
    """
    other = read_summary(against)["protocol"]
    check_comparable(protocol, other, str(against))
    if protocol["reading"] != other["reading"]:
        raise UsageError(
            f"the evaluation in {against} reads replies by the {other['reading']} rules and this "
            f"one by the {protocol['reading']} ones: give both the same --preset"
        )


def results_in(problems: Sequence[Problem], folder: Path) -> dict[str, float]:
    """The score of every problem in an earlier evaluation; see `problem_results`.

    Raises:
        UsageError: `folder` has no finished evaluation with episodes.
    """
    records = read_episodes(folder / "episodes.jsonl")
    results = problem_results(problems, read_summary(folder), records)
    if not results:
        raise UsageError(f"{folder} has no episodes (episodes.jsonl) to compare with")
    return results


def scores_in(problems: Sequence[Problem], folder: Path) -> list[list[float]]:
    """The scores of the episodes of every problem in an earlier evaluation that has any.

    Raises:
        UsageError: `folder` has no episodes of the problems.
    """
    names = {problem.id for problem in problems}
    groups = attempts_of(read_episodes(folder / "episodes.jsonl"))
    scores = [[row.score for row in group] for name, group in groups.items() if name in names]
    if not scores:
        raise UsageError(f"{folder} has no episodes (episodes.jsonl) of these problems")
    return scores


class PairedComparison(TypedDict):
    """Two evaluations compared by the scores of their problems.

    `interval` is None where `paired_interval` has none; `unpaired` problems have no episode on one
    side.
    """

    difference: float
    interval: Sequence[float] | None
    problems: int
    won: int
    lost: int
    tied: int
    unpaired: int


def paired_comparison(before: Mapping[str, float], after: Mapping[str, float]) -> PairedComparison:
    """Compare two evaluations: the accuracy after less that before, and counts of problems.

    Raises:
        UsageError: no problem has an episode on both sides.
    """
    pairs = [(before[name], score) for name, score in after.items() if name in before]
    if not pairs:
        raise UsageError("the evaluations have no problem in common with an episode in both")
    first, second = zip(*pairs, strict=True)
    return {
        "difference": mean(second) - mean(first),
        "interval": paired_interval(first, second),
        "problems": len(pairs),
        "won": sum(new > old for old, new in pairs),
        "lost": sum(new < old for old, new in pairs),
        "tied": sum(new == old for old, new in pairs),
        "unpaired": len({*before, *after}) - len(pairs),
    }


_TABLE = (*SAME, "reading")
"""Fields of the protocol that all rows of a table share."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A finished evaluation."""

    name: str
    policy: str
    """Policies as the command line has them."""
    folder: Path
    summary: Mapping[str, Any]
    scores: Mapping[str, float]
    """Score of every problem, by its id; see `flowzoo.agents.evaluation.comparison`."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """Identities of the models, by policy."""

    @property
    def accuracy(self) -> float:
        """Accuracy of the votes if it voted, else of the episodes."""
        return self.summary.get("majority", self.summary)["accuracy"]

    @property
    def interval(self) -> Sequence[float] | None:
        """95 % interval of the accuracy; None: there is none."""
        if "majority" in self.summary:
            return self.summary["majority"]["interval"]
        return self.summary["intervals"].get("accuracy")


def leaderboard(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """One table for the evaluations of each set of problems, as plain values.

    Returns:
        Tables with `task`, `split`, `problems`, `problem_set`, `reading` and `rows`, which have the
        best accuracy first and equal ones in the order of `entries`. `behind` is the paired
        difference to the first row (see `paired_comparison`), `usage` is that of the summary.
    """
    tables: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        key = tuple(entry.summary["protocol"][name] for name in _TABLE)
        tables.setdefault(key, []).append(entry)
    rankings = {
        key: sorted(rows, key=lambda entry: -entry.accuracy) for key, rows in tables.items()
    }
    return [
        {**dict(zip(_TABLE, key, strict=True)), "rows": [_row(entry, rows[0]) for entry in rows]}
        for key, rows in rankings.items()
    ]


def _row(entry: Entry, best: Entry) -> dict[str, Any]:
    summary, protocol = entry.summary, entry.summary["protocol"]
    return {
        "name": entry.name,
        "workflow": protocol["workflow"],
        "policy": entry.policy,
        "samples": protocol["samples"],
        "accuracy": entry.accuracy,
        "interval": entry.interval,
        "behind": None if entry is best else paired_comparison(best.scores, entry.scores),
        "episodes": summary["episodes"],
        "unknown": len(summary.get("unknown", ())),
        "calls": summary["calls"],
        "usage": summary["usage"],
        "folder": str(entry.folder),
        "models": dict(entry.models),
    }


_COLUMNS = ("workflow", "policy", "accuracy", "95 % interval", "to the first, points",
            "calls", "tokens in, out", "seconds", "cost")  # fmt: skip
_NOTE = (
    "Calls and tokens are per episode, seconds the median of a call, costs those of all episodes. "
    "Differences to the first are paired by problem, each with its 95 % interval."
)


def as_markdown(tables: Sequence[Mapping[str, Any]]) -> str:
    """The tables for people."""
    blocks: list[str] = []
    for table in tables:
        head = f"{table['task']}, {table['split']}, {table['problems']} problems "
        head += f"({table['problem_set'][:6]}), {table['reading']}"
        lines = [f"**{head.translate(_ESCAPES)}**", ""]
        lines += [_line(_COLUMNS), _line(["---"] * 2 + ["---:"] * (len(_COLUMNS) - 2))]
        lines += [_line(list(_cells(row))) for row in table["rows"]]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, _NOTE]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.translate(_ESCAPES) for cell in cells)} |"


_ESCAPES = {ord("\n"): " "} | {ord(sign): f"&#{ord(sign)};" for sign in "|<>&`[]\\"}
"""Signs of names that Markdown would read, as numbers of HTML."""


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    usage, episodes = row["usage"], row["episodes"]
    yield row["workflow"] + (f" ({row['samples']} each)" if row["samples"] > 1 else "")
    yield row["policy"]
    unknown = f" ({row['unknown']:,} unknown)" if row["unknown"] else ""
    yield f"{100 * row['accuracy']:.1f} %{unknown}"
    yield _ends(row["interval"], "")
    behind = row["behind"]
    yield f"{100 * behind['difference']:+.1f} ({_ends(behind['interval'], '+')})" if behind else "-"
    yield f"{row['calls']:.2f}"
    counts = (usage["prompt_tokens"], usage["output_tokens"])
    yield ", ".join("n/a" if count is None else f"{count / episodes:.0f}" for count in counts)
    yield f"{usage['latency']['median']:.2f}" if usage["latency"] else "n/a"
    yield "n/a" if usage.get("cost") is None else f"${usage['cost']:,.4f}"


def _ends(ends: Sequence[float] | None, sign: str) -> str:
    return "none" if ends is None else " to ".join(f"{100 * end:{sign}.1f}" for end in ends)
