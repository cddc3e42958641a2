"""Reconcile flowzoo with lm-eval, lighteval and Inspect on the same stored replies.

    python -m benchmarks.reconcile                                    # the table of docs/data
    python -m benchmarks.reconcile --data ../shared/data --write      # score anew
    python -m benchmarks.reconcile --data ... --model SmolLM2=FOLDER  # FOLDER/SET: an evaluation

Every harness has an environment of its own in --environments, made with pip where it is not there,
and scores with the functions and files of its own tasks, stop strings included. Programs of all of
them run in flowzoo's sandbox. The reference is flowzoo's `score_batch` for mathematics and `flowzoo
eval` for programs; "strict" reads the box alone, as `flowzoo eval` and training do. A form of reply
has a label by which every harness is judged.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.reconcile.causes import cause
from benchmarks.reconcile.replies import (
    SETS,
    Stored,
    replies_in_forms,
    replies_of_model,
)
from benchmarks.reconcile.scores import HARNESSES, Score, flowzoo_scores, harness_scores
from flowzoo.files import write_json
from flowzoo.reward import MathOptions, score_batch
from flowzoo.reward.math.extract import ExtractMode, extract

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "docs" / "data" / "reconcile.json"
VERDICTS = ROOT / "docs" / "data" / "reconcile-verdicts.json"
REFERENCE, STRICT = "flowzoo", "flowzoo, strict"
READINGS: tuple[tuple[str, MathOptions, ExtractMode], ...] = (
    (REFERENCE, MathOptions(), "auto"),
    (STRICT, MathOptions(read="strict"), "strict"),
)
"""Name, options of the comparison, and what an answer is taken from."""
COLUMNS = [
    "set", "harness", "replies", "as flowzoo", "only flowzoo pays", "only the harness pays",
    "labels missed", "causes of the differences",
]  # fmt: skip
Scored = tuple[Stored, dict[str, Score]]


def stored_replies(options: argparse.Namespace) -> Iterator[list[Stored]]:
    """The replies, by set and source."""
    for name in options.sets:
        yield [one for one in replies_in_forms(options.data) if one["set"] == name]
        for source, _, folder in (model.partition("=") for model in options.model):
            if (Path(folder) / name / "episodes.jsonl").is_file():
                yield [*replies_of_model(options.data, name, source, Path(folder) / name)]


def score_all(options: argparse.Namespace) -> list[Scored]:
    """Score all replies by flowzoo and by every harness."""
    groups = [*stored_replies(options)]
    replies = [*chain.from_iterable(groups)]
    scores: list[dict[str, Score]] = []
    for group in groups:
        name = group[0]["set"]
        if SETS[name].task == "code":
            folder = options.work / f"{name}-{group[0]['source']}"
            scores += [{REFERENCE: score} for score in flowzoo_scores(options.data, folder, group)]
        else:
            scores += map(by_library, group)
    for harness in options.harnesses:
        rows = harness_scores(harness, options.environments, replies)
        for found, row in zip(scores, rows, strict=True):
            found.update(row)
    return [*zip(replies, scores, strict=True)]


def by_library(one: Stored) -> dict[str, Score]:
    """The verdicts of `score_batch` on a reply, as a reader reads it and as training does."""
    gold = one["doc"]["answer"].rpartition("#### ")[2]
    found = {}
    for name, options, mode in READINGS:
        (score,) = score_batch([one["reply"]], [gold], options).scores
        found[name] = Score(score, extract(one["reply"], mode) or "")
    return found


def table_rows(scored: list[Scored]) -> list[list[str]]:
    """A line for each set and harness: agreement, labels, causes with their counts."""
    groups: dict[tuple[str, str], list[tuple[Stored, Score, Score]]] = defaultdict(list)
    for one, found in scored:
        for name, score in found.items():
            if name != REFERENCE:
                groups[one["set"], name].append((one, found[REFERENCE], score))
    return [[*key, *counts(key[1], rows)] for key, rows in groups.items()]


def counts(name: str, rows: list[tuple[Stored, Score, Score]]) -> list[str]:
    """The cells of a harness on a set."""
    differ = [row for row in rows if row[1].value != row[2].value]
    lost = sum(ours.value > theirs.value for _, ours, theirs in differ)
    causes = Counter(cause(name, one, theirs, ours) for one, ours, theirs in differ)
    labeled = [(one["right"], score.value) for one, _, score in rows if one["right"] is not None]
    missed = sum(bool(right) != bool(value) for right, value in labeled)
    listed = "<br>".join(f"{count}: {text}" for text, count in causes.most_common())
    return [
        str(len(rows)), str(len(rows) - len(differ)), str(lost), str(len(differ) - lost),
        f"{missed} of {len(labeled)}", listed,
    ]  # fmt: skip


def verdicts(scored: list[Scored]) -> dict[str, Any]:
    """The verdicts without texts: set, source and form, then each harness's, a digit a row."""
    digits: dict[str, dict[str, str]] = defaultdict(lambda: defaultdict(str))
    for one, found in scored:
        key = " / ".join((one["set"], one["source"], one["form"])).removesuffix(" / ")
        for name, score in found.items():
            digits[key][name] += str(round(score.value))
    return digits


def main() -> None:
    """Print the table, scored anew if there is data."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of public data")
    parser.add_argument("--model", nargs="*", default=[], help="NAME=FOLDER of real replies")
    parser.add_argument("--sets", nargs="*", default=[*SETS], help="which sets")
    parser.add_argument("--harnesses", nargs="*", default=[*HARNESSES], help="which harnesses")
    parser.add_argument("--environments", type=Path, default=ROOT / ".venv-third-party")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "reconcile")
    parser.add_argument("--write", action="store_true", help="write the table into docs/data")
    options = parser.parse_args()
    if options.data is None:
        rows = json.loads(RESULT.read_text(encoding="utf-8"))["rows"]
    else:
        scored = score_all(options)
        rows = table_rows(scored)
        if options.write:
            chosen = f"--sets {' '.join(options.sets)} --harnesses {' '.join(options.harnesses)}"
            command = f"python -m benchmarks.reconcile --data ../shared/data {chosen} --write"
            write_json(RESULT, {"command": command, "columns": COLUMNS, "rows": rows})
            write_json(VERDICTS, {"command": command, "verdicts": verdicts(scored)})
    for row in [COLUMNS, *rows]:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
