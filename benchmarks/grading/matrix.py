"""A matrix of sorts and kinds of mistakes: which respellings a grader refuses, what misses it pays.

    python -m benchmarks.grading.matrix --pairs 20000 --seed 7 --math-verify 400 --json matrix.json

Without `--seed` every run draws new pairs. The command ends with status 1 if flowzoo pays a near
miss or gives verdicts that are not symmetric or transitive.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count, islice, permutations
from pathlib import Path
from typing import TypeAlias

from benchmarks.grading.cases import SORTS, Case, draw_case, name_of, redrawn, shrunk
from benchmarks.grading.sort import Sort
from flowzoo.reward import score_batch

Pairs: TypeAlias = Sequence[tuple[str, str]]
"""Replies with reference answers."""
Grader: TypeAlias = Callable[[Pairs], list[bool]]


def flowzoo(pairs: Pairs) -> list[bool]:
    """Verdicts of flowzoo with its default options."""
    result = score_batch([pred for pred, _ in pairs], [gold for _, gold in pairs])
    return [score == 1.0 for score in result.scores]


def math_verify(pairs: Pairs) -> list[bool]:
    """Verdicts of Math-Verify; an exception of it is no match."""
    from math_verify import parse, verify

    def verdict(pred: str, gold: str) -> bool:
        try:
            return bool(verify(parse(f"${gold}$"), parse(pred)))
        except Exception:
            return False

    return [verdict(pred, gold) for pred, gold in pairs]


@dataclass(frozen=True)
class Group:
    """A value with two respellings and two near misses of the same seed."""

    right: tuple[Case, Case]
    wrong: tuple[Case, ...]

    def texts(self) -> list[str]:
        """Answers in LaTeX: the reference, the respellings, the misses."""
        return [self.right[0].gold(), *(case.answer() or "" for case in (*self.right, *self.wrong))]


def groups(seed: str, sorts: Sequence[Sort] = SORTS) -> Iterator[Group]:
    """Groups of the sorts in turn, with kinds of misses in turn; without end."""
    for idx in count():
        for sort in sorts:
            name, kinds = f"{seed} {sort.name} {idx}", list(sort.misses)
            right = [draw_case(sort, name, salt=salt) for salt in ("a", "b")]
            turned = [kinds[(2 * idx + shift) % len(kinds)] for shift in range(len(kinds))]
            wrong = [case for kind in turned if (case := draw_case(sort, name, kind))]
            if right[0] and right[1]:
                yield Group((right[0], right[1]), tuple(wrong[:2]))


@dataclass
class Report:
    """Verdicts of a grader on drawn groups."""

    counts: dict[str, dict[str, list[int]]]
    """Pairs that are paid and all pairs, by sort and kind of miss; respellings have no kind."""
    relations: dict[str, list[int]]
    """Cases in which verdicts are symmetric or transitive, and all cases."""
    failures: list[Case]
    broken: dict[str, list[str]]
    """Answers whose verdicts are not symmetric or transitive, by relation and sort."""

    def total(self, missed: bool) -> list[int]:
        """Pairs that are paid and all pairs, of near misses or of respellings."""
        cells = [cell for kinds in self.counts.values() for kind, cell in kinds.items()
                 if bool(kind) == missed]  # fmt: skip
        return [sum(column) for column in zip(*cells, strict=True)] or [0, 0]


def boxed(text: str) -> str:
    """Reply with an answer in a box."""
    return rf"$\boxed{{{text}}}$"


def measure(drawn: Sequence[Group], grader: Grader) -> Report:
    """Verdicts of a grader on groups: on their replies, and on their answers among themselves."""
    report = Report(
        {sort.name: {} for sort in SORTS}, {"symmetric": [0, 0], "transitive": [0, 0]}, [], {}
    )
    cases = [case for group in drawn for case in (*group.right, *group.wrong)]
    pairs = [(case.reply() or "", case.gold()) for case in cases]
    for case, paid in zip(cases, grader(pairs), strict=True):
        _count(report.counts[case.sort.name].setdefault(case.miss, [0, 0]), paid)
        if paid == bool(case.miss):
            report.failures.append(case)
    texts = [(group.right[0].sort.name, group.texts()) for group in drawn]
    asked = sorted({(boxed(a), b) for _, answers in texts for a, b in permutations(answers, 2)})
    verdicts = dict(zip(asked, grader(asked), strict=True))
    for sort, answers in texts:
        _relate(report, sort, answers, lambda a, b: a == b or verdicts[boxed(a), b])
    return report


def _count(cell: list[int], holds: bool) -> None:
    cell[0] += holds
    cell[1] += 1


def _relate(report: Report, sort: str, texts: list[str], equal: Callable[[str, str], bool]) -> None:
    checks = [("symmetric", (a, b), equal(a, b) == equal(b, a)) for a, b in combinations(texts, 2)]
    checks += [
        ("transitive", (a, b, c), equal(a, c))
        for a, b, c in permutations(texts, 3) if equal(a, b) and equal(b, c)
    ]  # fmt: skip
    for relation, answers, holds in checks:
        _count(report.relations[relation], holds)
        if not holds:
            broken = report.broken.setdefault(f"{sort}: not {relation}", [])
            broken.append("   |   ".join(answers))


def failing_kinds(failures: Sequence[Case], grader: Grader) -> list[dict[str, object]]:
    """Failures by sort, kind of miss and the fewest rewrites, most frequent first."""

    def fails(case: Case) -> bool:
        return grader([(case.reply() or "", case.gold())])[0] == bool(case.miss)

    kinds: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    for case in failures:
        small = shrunk(case, fails)
        rewrites = ", ".join(map(name_of, small.rewrites)) or "as it is"
        kinds[small.sort.name, small.miss, rewrites].append(small)
    rows = list[dict[str, object]]()
    for (sort, miss, rewrites), cases in sorted(kinds.items(), key=lambda item: -len(item[1])):
        example = redrawn(min(cases, key=lambda case: len(case.gold())), fails)
        rows.append({"sort": sort, "miss": miss, "rewrites": rewrites, "count": len(cases),
                     "gold": example.gold(), "reply": example.reply()})  # fmt: skip
    return rows


def table(report: Report) -> Iterator[str]:
    """Lines of the matrix."""
    yield f"{'sort':32}{'respellings paid':>20}   near misses paid, by kind"
    for sort, kinds in report.counts.items():
        paid, total = kinds.get("", [0, 0])
        cells = [f"{kind} {n}/{of}" for kind, (n, of) in sorted(kinds.items()) if kind]
        yield f"{sort:32}{paid:>10} of {total:<6}   {', '.join(cells)}"
    for name, (paid, total) in (
        ("respellings paid", report.total(missed=False)),
        ("near misses paid", report.total(missed=True)), *report.relations.items(),
    ):  # fmt: skip
        yield f"{name}: {paid:,} of {total:,} ({paid / max(total, 1):.2%})"


def main() -> None:
    """Draw pairs, grade them, print the matrix and every kind of failure in a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20_000, help="replies to grade")
    parser.add_argument("--seed", help="text that determines the pairs; a new one by default")
    parser.add_argument(
        "--math-verify", type=int, default=0, metavar="N", help="replies for it, too; it is slow"
    )
    parser.add_argument("--json", type=Path, help="file for the counts and failures")
    args = parser.parse_args()
    seed = args.seed or secrets.token_hex(4)
    drawn = list(islice(groups(seed), args.pairs // 4))
    results = {"flowzoo": _show("flowzoo", seed, drawn, flowzoo)}
    if args.math_verify:
        sample = drawn[: args.math_verify // 4]
        results["Math-Verify"] = _show("Math-Verify", seed, sample, math_verify)
    if args.json:
        args.json.write_text(json.dumps({"seed": seed, **results}, indent=1, ensure_ascii=False))
    sys.exit(1 if results["flowzoo"]["is_wrong"] else 0)


def _show(name: str, seed: str, drawn: Sequence[Group], grader: Grader) -> dict[str, object]:
    report = measure(drawn, grader)
    print(f"{name}, seed {seed}", *table(report), sep="\n")
    kinds = failing_kinds(report.failures, grader) if name == "flowzoo" else []
    for row in kinds:
        verdict = f"paid, {row['miss']}" if row["miss"] else "refused"
        line = f"{row['count']:>5} {row['sort']}: {verdict} ({row['rewrites']}): "
        print(line + f"{row['gold']}   |   {row['reply']}".replace("\n", " "))
    for relation, lines in report.broken.items():
        print(f"{len(lines):>5} {relation}: {min(lines, key=len)}")
    is_wrong = bool(report.total(missed=True)[0] or report.broken)
    return {"counts": report.counts, "relations": report.relations, "failures": kinds,
            "is_wrong": is_wrong}  # fmt: skip


if __name__ == "__main__":
    main()
