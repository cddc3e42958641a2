"""Agreement of graders with labeled answers: `math_unseen`, `math_cases`, HardVerify-Math, and
pairs of authors who had not seen the grader (`blind/`).

    python -m benchmarks.grading.agreement --data FOLDER --math-verify --failures

Prints the answers that are right and refused, and that are wrong and paid, by file.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from benchmarks.grading.matrix import Grader, boxed, flowzoo, math_verify
from benchmarks.speed.data import json_rows

BLIND = Path(__file__).parent / "blind"
"""Pairs whose kinds the authors chose themselves. What the grader got right when it first saw them
stands in docs/measured/grading.md; afterwards they may have been read while it was improved."""
Labeled = list[tuple[str, str, bool]]
"""Replies with reference answers and labels."""


def files(data: Path) -> Iterator[tuple[str, Labeled]]:
    """The labeled answers of each file."""
    for name in ("math_unseen", "math_cases"):
        rows = json_rows(data / f"{name}.jsonl")
        yield name, [(row["pred"], row["gold"], row["expected"]) for row in rows]
    rows = json_rows(data / "hardverify" / "hardverify.jsonl")
    for label in ("right", "wrong"):
        is_right = label == "right"
        yield f"hardverify, {label}", [(boxed(row[label]), row["gold"], is_right) for row in rows]

    for path in sorted(BLIND.glob("*.jsonl")):
        blind = [(row["pred"], row["gold"], row["expected"]) for row in json_rows(path)]
        yield f"blind, {path.stem}", blind


def show(name: str, labeled: Labeled, graders: dict[str, Grader], with_failures: bool) -> None:
    """Print a line for each grader, and flowzoo's failures."""
    for title, grader in graders.items():
        paid = grader([(pred, gold) for pred, gold, _ in labeled])
        rows = list(zip(labeled, paid, strict=True))
        refused = [row for row, is_paid in rows if row[2] and not is_paid]
        wrong = [row for row, is_paid in rows if is_paid and not row[2]]
        right = len(labeled) - len(refused) - len(wrong)
        counts = f"refused: {len(refused):<5}paid: {len(wrong)}"
        print(f"{name:20}{title:12}{right:>5} of {len(labeled):<5}{counts}")
        if with_failures and title == "flowzoo":
            for kind, failures in (("refused", refused), ("paid", wrong)):
                for pred, gold, _ in failures:
                    print(f"    {kind}: {gold}   |   {pred}".replace("\n", " "))


def main() -> None:
    """Grade every file that is in the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with the files")
    parser.add_argument("--math-verify", action="store_true", help="grade them with it, too")
    parser.add_argument("--failures", action="store_true", help="print flowzoo's failures")
    args = parser.parse_args()
    graders: dict[str, Grader] = {"flowzoo": flowzoo}
    if args.math_verify:
        graders["Math-Verify"] = math_verify
    for name, labeled in files(args.data):
        if labeled:
            show(name, labeled, graders, args.failures)


if __name__ == "__main__":
    main()
