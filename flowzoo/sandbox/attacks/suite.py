"""Runs the probes against a sandbox and says what held."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from flowzoo.sandbox.attacks.canaries import (
    Canaries,
    ResourceCounts,
    count_resources,
    settled_resources,
)
from flowzoo.sandbox.attacks.probe import ANSWER, AttackProbe
from flowzoo.sandbox.attacks.tiers import is_promised
from flowzoo.sandbox.program import Limits, Program, Test, Verdict
from flowzoo.sandbox.sandbox import Sandbox

HONEST: Final = Program("print(int(input()) + 1)")
HONEST_S: Final = 0.5
"""Seconds within which an honest program must be accepted after any probe."""
SLACK_S: Final = 3.0
"""Seconds that a verdict may take beyond the clocks of its runs."""
CONTROL_S: Final = 30.0
FDS_MORE: Final = 8
"""Descriptors that boxes under way may hold."""


class ProbeResult(NamedTuple):
    """What one probe came to."""

    name: str
    category: str
    expected: str
    """The verdicts in order, or what else should be."""
    got: str
    ok: bool
    promised: bool = True
    """Whether the tier promises this; see `LIMITS_OF_TIER`."""
    note: str = ""


def run_suite(sandbox: Sandbox, probes: Iterable[AttackProbe]) -> Iterator[ProbeResult]:
    """Run the probes one by one, each followed by an honest program; then look at the load.

    Args:
        sandbox: under test; one worker makes sure that what a probe leaves meets the next one.
        probes: what to run.

    Yields:
        A finding for each probe, in order, and one for each kind of load.
    """
    tier = sandbox.tier
    with Canaries() as canaries:
        before = count_resources()
        for _ in range(2):  # the first start of a box is not what is timed
            _judge(sandbox, HONEST, ANSWER, Limits())
        for probe in probes:
            promised = is_promised(tier, probe)
            if probe.harmful and tier == "unsafe":
                note = "would harm the machine or leave it"
                yield ProbeResult(probe.name, probe.category, "", "not run", False, False, note)
                continue
            yield _find(sandbox, canaries, canaries.fill(probe), promised)
        yield from compare_resources(before, settled_resources(before), len(sandbox.box_pids()))


def _find(sandbox: Sandbox, canaries: Canaries, probe: AttackProbe, promised: bool) -> ProbeResult:
    """Run one probe and what must hold after it."""
    start = time.perf_counter()
    verdict = _judge(sandbox, Program(probe.source, probe.entry), probe.tests, probe.limits)
    took = time.perf_counter() - start
    start = time.perf_counter()
    after = _judge(sandbox, HONEST, ANSWER, Limits())
    waited = time.perf_counter() - start
    notes = []
    if verdict.status not in probe.allowed:
        notes.append(_tell(verdict))
    # A check is two sessions, and what breaks a box may be tried on a second one.
    if took > 2 * probe.limits.wall * len(probe.tests) + SLACK_S:
        notes.append(f"the verdict took {took:.1f} s")
    if after.status != "AC":
        notes.append(f"the honest program after it: {_tell(after)}")
    elif waited > HONEST_S:
        notes.append(f"the honest program after it took {waited:.2f} s")
    notes += [f"touched: {name}" for name in canaries.touched()]
    expected = " ".join(sorted(probe.allowed))
    got = verdict.status
    return ProbeResult(
        probe.name, probe.category, expected, got, not notes, promised, "; ".join(notes)
    )


def _judge(sandbox: Sandbox, program: Program, tests: Sequence[Test], limits: Limits) -> Verdict:
    return sandbox.run_sync([program], [tests], limits, on_error="verdict")[0]


def _tell(verdict: Verdict) -> str:
    """One line about a verdict: the first case that failed."""
    for case in verdict.cases:
        if case.status == verdict.status:
            said = f"{case.detail} {case.stdout[:200]!r} {case.stderr[-200:]!r}"
            return f"{case.status} {said}"
    return verdict.status


def compare_resources(
    before: ResourceCounts, after: ResourceCounts, boxes: int
) -> list[ProbeResult]:
    """What the suite left on the machine.

    Args:
        before: the load at its start.
        after: at its end.
        boxes: that run now, each of which holds a few descriptors.
    """
    spare = FDS_MORE * (boxes + 1)
    rows = (
        ("open descriptors of the caller", before.fds + spare, after.fds),
        ("processes that nobody owns", before.orphans, after.orphans),
        ("files of probes on the host", before.leftovers, after.leftovers),
    )
    return [
        ProbeResult(name, "load", f"at most {most}", str(found), found <= most)
        for name, most, found in rows
    ]


def run_control(probe: AttackProbe) -> bool:
    """Whether a probe with a control prints `leak` outside of any box: it does what it says.

    The program runs with the rights of the caller. Only probes whose `control` is set are made for
    that: what they reach is then of throw-away canaries, or takes no effect.
    """
    with Canaries() as canaries, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.py")
        path.write_text(canaries.fill(probe).source)
        command = [sys.executable, "-I", "-S", "-B", str(path)]
        done = subprocess.run(
            command, input=b"41\n", capture_output=True, timeout=CONTROL_S, check=False,
            cwd=folder, env=dict(os.environ),
        )  # fmt: skip
        for name in ("flowzoo-probe", "flowzoo-probe-2"):
            with contextlib.suppress(OSError):
                os.unlink(name)
        return done.stdout.startswith(b"leak")
