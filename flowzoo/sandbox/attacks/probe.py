"""Probes: programs with their allowed verdicts, and a way to show a leak.

Every stdin probe has the same task: read n, print n + 1. A probe that tries to reach something it
must not reach prints `leak` and what it reached instead of the answer, so that a leak is a wrong
answer; a probe whose attempts all failed prints the answer. `control` says that the same program,
run outside of any box, does print `leak`: so its silence in a box means something.

The texts hold `@NAME@` where the suite puts in what only the running canaries know (`canaries`).
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent
from typing import Literal, get_args

from flowzoo.sandbox.program import CallTest, CheckTest, Limits, Status, StdinTest, Test

Category = Literal[
    "honest", "resources", "output", "exit", "signals", "escape", "state", "network", "hacks"
]
CATEGORIES: tuple[Category, ...] = get_args(Category)

QUICK = Limits(cpu_s=0.5, wall_s=4.0, memory_mb=128)
"""Limits of a probe that names no others: small, so that the suite is over soon."""
NAP = Limits(cpu_s=0.5, wall_s=1.0, memory_mb=128)
"""For probes that wait for the clock on the wall."""
HEAVY = Limits(cpu_s=3.0, wall_s=10.0, memory_mb=128)
"""For probes that need some CPU time before another limit stops them."""
ANSWER = (StdinTest("41\n", "42\n"),)
CALL = (CallTest((41,), 42),)
CHECK = (CheckTest("def check(candidate):\n    assert candidate(41) == 42\n", "check(candidate)"),)

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
"""In front of probes that try to reach something: any other exception than `passes` is an error of
the probe and shows as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackProbe:
    """One program of the suite."""

    name: str
    category: Category
    source: str
    allowed: frozenset[Status]
    """Verdicts that are in order."""
    tests: tuple[Test, ...] = ANSWER
    entry: str | None = None
    limits: Limits = QUICK
    control: bool = False
    """True if it prints `leak` when it runs outside of any box."""
    harmful: bool = False
    """Not run under `unsafe`, where it would harm the machine, or send something out of it."""


def stdin(
    category: Category,
    name: str,
    allowed: str,
    source: str,
    *,
    tests: tuple[Test, ...] = ANSWER,
    limits: Limits = QUICK,
    control: bool = False,
    harmful: bool = False,
    reaches: bool = False,
) -> AttackProbe:
    """A probe that reads stdin.

    Args:
        category: of the probe.
        name: unique.
        allowed: statuses, separated by blanks.
        source: the program, indented as is convenient.
        tests: of the program.
        limits: of each run.
        control: see `AttackProbe`.
        harmful: see `AttackProbe`.
        reaches: put `HEAD` in front.
    """
    text = _flush(source)
    return AttackProbe(
        name=name,
        category=category,
        source=HEAD + text if reaches else text,
        allowed=_statuses(allowed),
        tests=tests,
        limits=limits,
        control=control,
        harmful=harmful,
    )


def call(
    category: Category,
    name: str,
    allowed: str,
    source: str,
    *,
    tests: tuple[Test, ...] = CALL,
    entry: str = "f",
    limits: Limits = QUICK,
) -> AttackProbe:
    """A probe whose function is called: f(41) must return 42; arguments as for `stdin`."""
    return AttackProbe(
        name=name,
        category=category,
        source=_flush(source),
        allowed=_statuses(allowed),
        tests=tests,
        entry=entry,
        limits=limits,
    )


def _flush(source: str) -> str:
    """The source from its first line on, at the margin; one of 6 MB is there already."""
    text = source.lstrip("\n")
    return dedent(text) if text[:1] in (" ", "\t") else text


def _statuses(listing: str) -> frozenset[Status]:
    statuses: dict[str, Status] = {name: name for name in get_args(Status)}
    return frozenset(statuses[name] for name in listing.split())
