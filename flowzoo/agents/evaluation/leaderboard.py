"""Tables of evaluations on the same problems, the best first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.comparison import paired_comparison
from flowzoo.agents.evaluation.protocol import SAME

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
    return [_table(key, rows) for key, rows in tables.items()]


def _table(key: Sequence[Any], entries: Sequence[Entry]) -> dict[str, Any]:
    ranking = sorted(entries, key=lambda entry: -entry.accuracy)
    rows = [_row(entry, ranking[0]) for entry in ranking]
    return {**dict(zip(_TABLE, key, strict=True)), "rows": rows}


def _row(entry: Entry, best: Entry) -> dict[str, Any]:
    summary = entry.summary
    shared = summary["protocol"]
    return {
        "name": entry.name,
        "workflow": shared["workflow"],
        "policy": entry.policy,
        "samples": shared["samples"],
        "accuracy": entry.accuracy,
        "interval": entry.interval,
        "behind": None if entry is best else paired_comparison(best.scores, entry.scores),
        "episodes": summary["episodes"],
        "calls": summary["calls"],
        "usage": summary["usage"],
        "folder": str(entry.folder),
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
        lines = [f"**{head}({table['problem_set'][:6]}), {table['reading']}**", ""]
        lines += [_line(_COLUMNS), _line(["---"] * 2 + ["---:"] * (len(_COLUMNS) - 2))]
        lines += [_line(list(_cells(row))) for row in table["rows"]]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, _NOTE]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    usage, episodes = row["usage"], row["episodes"]
    yield row["workflow"] + (f" ({row['samples']} each)" if row["samples"] > 1 else "")
    yield row["policy"]
    yield f"{100 * row['accuracy']:.1f} %"
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
