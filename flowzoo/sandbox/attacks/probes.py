"""Probes: attacks that a sandbox must stop, and honest programs, a few per category.

The whole suite is in `tests/sandbox/probes`.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, get_args

from flowzoo.files import read_toml
from flowzoo.sandbox.program import CallTest, CheckTest, Limits, Status, StdinTest, Test

Category = Literal[
    "honest", "resources", "output", "exit", "signals", "escape", "state", "network", "hacks"
]

QUICK = Limits(cpu_s=0.5, wall_s=4.0, memory_mb=128)  # small, to keep the suite fast
NAP = Limits(cpu_s=0.5, wall_s=1.0, memory_mb=128)  # for probes that wait for the wall clock
HEAVY = Limits(cpu_s=3.0, wall_s=10.0, memory_mb=128)  # for probes that another limit stops
FILES = Limits(cpu_s=1.0, wall_s=4.0, memory_mb=128, files_mb=8)
ANSWER = (StdinTest("41\n", "42\n"),)
TWICE = (StdinTest("41\n", "42\n"), StdinTest("1\n", "2\n"), StdinTest("1\n", "2\n"))
CALL = (CallTest((41,), 42),)
CHECK = (CheckTest("def check(candidate):\n    assert candidate(41) == 42\n", "check(candidate)"),)

# Prefix of probes that try to access something: exceptions other than `passes` are errors of the
# probe.
HEAD = '''
import os, sys
n = int(sys.stdin.readline())
def tries(*actions, passes=(OSError,)):
    """Print `leak` and the actions that succeeded, or the answer where all were refused."""
    done = []
    for action in actions:
        try:
            result = action()
        except passes:
            continue
        done.append(f"{action.__name__}={result!r}"[:200])
    print("leak " + " ".join(done) if done else n + 1)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackProbe:
    """A program of the suite: it reads n and prints n + 1, or `leak` after a forbidden access.

    `Canaries` replace placeholders such as `@FILE@` in its source.
    """

    name: str
    category: Category
    source: str
    allowed: frozenset[Status]
    tests: tuple[Test, ...] = ANSWER
    entry: str | None = None
    limits: Limits = QUICK
    control: bool = False
    """True if it prints `leak` outside a box, which shows that the probe works."""
    harmful: bool = False
    """True if `unsafe` must not run it, since it would harm the machine or send data out."""


def stdin(
    category: Category, name: str, allowed: str, source: str, reaches: bool = False, **options: Any
) -> AttackProbe:
    """Make a probe that reads stdin, with the prefix `HEAD` if it `reaches` for something."""
    text = source.lstrip("\n")
    text = dedent(text) if text[:1] in (" ", "\t") else text  # a source of 6 MB is not indented
    statuses: dict[str, Status] = {status: status for status in get_args(Status)}
    return AttackProbe(
        name=name,
        category=category,
        source=HEAD + text if reaches else text,
        allowed=frozenset(statuses[status] for status in allowed.split()),
        **options,
    )


call = partial(stdin, tests=CALL, entry="f")  # a probe whose function is called


def read_probes(path: Path) -> tuple[AttackProbe, ...]:
    """Probes of a TOML file: a table for each, with the keys of `stdin` and of `Limits`.

    `tests` and `limits` are given there or named; the file's `[tests]`, `[limits]` and `[prelude]`
    have shared ones. A probe with an `entry` is a function that is called. The category is the
    file's name unless a probe, or the key `category` of the file, says another.
    """
    tables = read_toml(path)
    kind = tables.pop("category", path.stem)
    preludes = tables.pop("prelude", {})
    tests = {"check": CHECK, "twice": TWICE}
    tests |= {name: _read_tests(rows) for name, rows in tables.pop("tests", {}).items()}
    limits = {"nap": NAP, "heavy": HEAVY, "files": FILES}
    limits |= {name: Limits(**row) for name, row in tables.pop("limits", {}).items()}
    probes = []
    for title, table in tables.items():
        if "tests" in table:
            given = table["tests"]
            table["tests"] = tests[given] if isinstance(given, str) else _read_tests(given)
        if "limits" in table:
            given = table["limits"]
            table["limits"] = limits[given] if isinstance(given, str) else Limits(**given)
        source = preludes.get(table.pop("prelude", ""), "") + table.pop("source")
        make = call if "entry" in table else stdin
        category = table.pop("category", kind)
        probes.append(make(category, title, table.pop("allowed"), source, **table))
    return tuple(probes)


def _read_tests(rows: list[dict[str, Any]]) -> tuple[Test, ...]:
    # `stdin` with `expected`, `check` with `call`, or `args` with `expected`.
    return tuple(
        StdinTest(**row)
        if "stdin" in row
        else CheckTest(row["check"], row.get("call", ""))
        if "check" in row
        else CallTest(**row | {"args": tuple(row["args"])})
        for row in rows
    )


PROBES = read_probes(Path(__file__).with_suffix(".toml"))
