"""Runs probes against a sandbox."""

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
from flowzoo.sandbox.attacks.probes import PROBES
from flowzoo.sandbox.program import Limits, Program, Test, Verdict
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import backend_spec

HONEST: Final = Program("print(int(input()) + 1)")
HONEST_S: Final = 0.5
"""Seconds within which an honest program must be accepted after any probe."""
SLACK_S: Final = 3.0
"""Seconds that a verdict may take beyond the clocks of its runs."""
CONTROL_S: Final = 30.0
FDS_MORE: Final = 8
"""Descriptors that a starting box may hold."""


class ProbeResult(NamedTuple):
    """Result of one probe."""

    name: str
    category: str
    expected: str
    """Allowed verdicts, or another expectation."""
    got: str
    ok: bool
    promised: bool = True
    """True if the backend promises to stop it; see `BackendSpec.limitations`."""
    note: str = ""


def run_suite(sandbox: Sandbox, probes: Iterable[AttackProbe] = PROBES) -> Iterator[ProbeResult]:
    """Run the probes one by one, each followed by an honest program; then compare resources.

    Args:
        sandbox: under test; with one worker, the next program meets what a probe left behind.
        probes: programs to run.

    Yields:
        A result for each probe, in order, and one for each kind of resource.
    """
    spec = backend_spec(sandbox.tier)
    with Canaries() as canaries:
        before = count_resources()
        for _ in range(2):  # the first start of a box is not what is timed
            _judge(sandbox, HONEST, ANSWER, Limits())
        for probe in probes:
            promised = spec.promises(probe.name, probe.category)
            if probe.harmful and not spec.confines:
                note = "would harm the machine or leave it"
                yield ProbeResult(probe.name, probe.category, "", "not run", False, False, note)
                continue
            yield _run_probe(sandbox, canaries, canaries.fill(probe), promised)
        yield from compare_resources(before, settled_resources(before), len(sandbox.box_pids()))


def _run_probe(
    sandbox: Sandbox, canaries: Canaries, probe: AttackProbe, promised: bool
) -> ProbeResult:
    """Run one probe, and check what must hold after it."""
    start = time.perf_counter()
    verdict = _judge(sandbox, Program(probe.source, probe.entry), probe.tests, probe.limits)
    seconds = time.perf_counter() - start
    start = time.perf_counter()
    after = _judge(sandbox, HONEST, ANSWER, Limits())
    honest_s = time.perf_counter() - start
    notes = []
    if verdict.status not in probe.allowed:
        notes.append(_describe(verdict))
    # A check is two sessions, and what breaks a box may be tried on a second one.
    if seconds > 2 * probe.limits.wall * len(probe.tests) + SLACK_S:
        notes.append(f"the verdict took {seconds:.1f} s")
    if after.status != "AC":
        notes.append(f"the honest program after it: {_describe(after)}")
    elif honest_s > HONEST_S:
        notes.append(f"the honest program after it took {honest_s:.2f} s")
    notes += [f"touched: {name}" for name in canaries.touched()]
    expected = " ".join(sorted(probe.allowed))
    got = verdict.status
    return ProbeResult(
        probe.name, probe.category, expected, got, not notes, promised, "; ".join(notes)
    )


def _judge(sandbox: Sandbox, program: Program, tests: Sequence[Test], limits: Limits) -> Verdict:
    return sandbox.run_sync([program], [tests], limits, on_error="verdict")[0]


def _describe(verdict: Verdict) -> str:
    """One line about a verdict: its first failing case."""
    for case in verdict.cases:
        if case.status == verdict.status:
            output = f"{case.stdout[:200]!r} {case.stderr[-200:]!r}"
            return f"{case.status} {case.detail} {output}"
    return verdict.status


def compare_resources(
    before: ResourceCounts, after: ResourceCounts, boxes: int
) -> list[ProbeResult]:
    """Compare the resources in use before and after the suite.

    Args:
        before: at its start.
        after: at its end.
        boxes: number of boxes that run now; each holds a few descriptors.
    """
    spare = FDS_MORE * (boxes + 1)
    rows = (
        ("open descriptors of the caller", before.fds + spare, after.fds),
        ("orphaned processes of runners", before.orphans, after.orphans),
        ("files of probes on the host", before.leftovers, after.leftovers),
    )
    return [
        ProbeResult(name, "load", f"at most {most}", str(count), count <= most)
        for name, most, count in rows
    ]


def run_control(probe: AttackProbe) -> bool:
    """Run a probe outside of any box; True if it prints `leak`, so its attack works.

    The program runs with the rights of the caller. Only probes whose `control` is set are made for
    that: they reach throw-away canaries, or have no effect.
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
