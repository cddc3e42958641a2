"""A matrix of sorts and kinds of mistakes: which respellings a grader refuses, what misses it pays.

    python -m benchmarks.grading.matrix --pairs 20000 --seed 7 --math-verify --json matrix.json

Without `--seed` every run draws new pairs. The command ends with status 1 if flowzoo pays a near
miss or gives verdicts that are not symmetric or transitive.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
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
    """Counts of a grader's verdicts and its failures."""

    respelled: Counter[tuple[str, bool]]
    missed: Counter[tuple[str, str, bool]]
    relations: Counter[tuple[str, bool]]
    failures: list[Case]
    broken: list[str]


def boxed(text: str) -> str:
    """Reply with an answer in a box."""
    return rf"$\boxed{{{text}}}$"


def measure(drawn: Sequence[Group], grader: Grader) -> Report:
    """Verdicts of a grader on groups: on their replies, and on their answers among themselves."""
    report = Report(Counter(), Counter(), Counter(), [], [])
    cases = [case for group in drawn for case in (*group.right, *group.wrong)]
    pairs = [(case.reply() or "", case.gold()) for case in cases]
    for case, paid in zip(cases, grader(pairs), strict=True):
        if case.miss:
            report.missed[case.sort.name, case.miss, paid] += 1
        else:
            report.respelled[case.sort.name, paid] += 1
        if paid == bool(case.miss):
            report.failures.append(case)
    texts = [group.texts() for group in drawn]
    asked = sorted({(boxed(a), b) for answers in texts for a in answers for b in answers if a != b})
    verdicts = dict(zip(asked, grader(asked), strict=True))
    for answers in texts:
        _relate(report, answers, lambda a, b: a == b or verdicts[boxed(a), b])
    return report


def _relate(report: Report, texts: Sequence[str], equal: Callable[[str, str], bool]) -> None:
    for idx, a in enumerate(texts):
        for b in texts[idx + 1 :]:
            holds = equal(a, b) == equal(b, a)
            report.relations["symmetric", holds] += 1
            report.broken += [] if holds else [f"not symmetric: {a}   |   {b}"]
            for c in texts:
                if c not in (a, b) and equal(a, b) and equal(b, c):
                    holds = equal(a, c)
                    report.relations["transitive", holds] += 1
                    report.broken += [] if holds else [f"not transitive: {a}   |   {b}   |   {c}"]


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
    kinds = sorted({(sort, kind) for sort, kind, _ in report.missed})
    yield f"{'sort':32}{'respellings paid':>20}   near misses paid, by kind"
    for sort in SORTS:
        paid, refused = report.respelled[sort.name, True], report.respelled[sort.name, False]
        cells = []
        for kind in (kind for name, kind in kinds if name == sort.name):
            wrong, total = report.missed[sort.name, kind, True], sum(
                report.missed[sort.name, kind, verdict] for verdict in (True, False)
            )  # fmt: skip
            cells.append(f"{kind} {wrong}/{total}")
        yield f"{sort.name:32}{paid:>10} of {paid + refused:<6}   {', '.join(cells)}"
    for name, counts, of in (
        ("respellings refused", report.respelled, False), ("near misses paid", report.missed, True)
    ):  # fmt: skip
        total, failed = counts.total(), sum(n for key, n in counts.items() if key[-1] == of)
        yield f"{name}: {failed:,} of {total:,} ({failed / max(total, 1):.2%})"
    for name in ("symmetric", "transitive"):
        broken, holds = report.relations[name, False], report.relations[name, True]
        yield f"{name}: {holds:,} of {holds + broken:,}"


def main() -> None:
    """Draw pairs, grade them, print the matrix and every kind of failure in a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=20_000, help="replies to grade")
    parser.add_argument("--seed", help="text that determines the pairs; a new one by default")
    parser.add_argument("--math-verify", action="store_true", help="grade them with it, too")
    parser.add_argument("--json", type=Path, help="file for the counts and failures")
    args = parser.parse_args()
    seed = args.seed or secrets.token_hex(4)
    drawn = list(islice(groups(seed), args.pairs // 4))
    graders = {"flowzoo": flowzoo} | ({"Math-Verify": math_verify} if args.math_verify else {})
    results = {name: _show(name, seed, drawn, grader) for name, grader in graders.items()}
    if args.json:
        args.json.write_text(json.dumps({"seed": seed, **results}, indent=1, ensure_ascii=False))
    sys.exit(1 if results["flowzoo"]["wrong"] else 0)


def _show(name: str, seed: str, drawn: Sequence[Group], grader: Grader) -> dict[str, object]:
    report = measure(drawn, grader)
    lines = list(table(report))
    print(f"{name}, seed {seed}", *lines, sep="\n")
    kinds = failing_kinds(report.failures, grader) if name == "flowzoo" else []
    for row in kinds:
        kind = f"paid, {row['miss']}" if row["miss"] else "refused"
        print(f"{row['count']:>5} {row['sort']}: {kind} ({row['rewrites']}): "
              f"{row['gold']}   |   {row['reply']}".replace("\n", " "))  # fmt: skip
    print(*report.broken[:20], sep="\n")
    paid = sum(n for key, n in report.missed.items() if key[-1])
    return {"table": lines, "kinds": kinds, "wrong": paid + len(report.broken)}


if __name__ == "__main__":
    main()
