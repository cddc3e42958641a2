"""The self-check: probes run against a sandbox, each followed by an honest program."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from flowzoo.sandbox.attacks.canaries import (
    Canaries,
    ResourceCounts,
    count_resources,
    settled_resources,
)
from flowzoo.sandbox.attacks.probes import ANSWER, PROBES, AttackProbe
from flowzoo.sandbox.program import Limits, Program, Test, Verdict
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import backend_spec

HONEST: Final = Program("print(int(input()) + 1)")
HONEST_S: Final = 0.5  # seconds within which an honest program must be accepted after any probe
SLACK_S: Final = 3.0  # seconds that a verdict may take beyond the clocks of its runs
FDS_MORE: Final = 8  # descriptors that a starting box may hold


class ProbeResult(NamedTuple):
    """Result of one probe, or of one kind of resource."""

    name: str
    category: str
    expected: str
    got: str
    ok: bool
    promised: bool = True  # by the backend, see `BackendSpec.limitations`
    note: str = ""


def run_suite(sandbox: Sandbox, probes: Iterable[AttackProbe] = PROBES) -> Iterator[ProbeResult]:
    """Yield a result for each probe, in order, and one for each kind of resource.

    With one worker, the next program meets what a probe left behind.
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
    expected, note = " ".join(sorted(probe.allowed)), "; ".join(notes)
    return ProbeResult(
        probe.name, probe.category, expected, verdict.status, not notes, promised, note
    )


def _judge(sandbox: Sandbox, program: Program, tests: Sequence[Test], limits: Limits) -> Verdict:
    return sandbox.run_sync([program], [tests], limits, on_error="verdict")[0]


def _describe(verdict: Verdict) -> str:
    for case in verdict.cases:
        if case.status == verdict.status:
            output = f"{case.stdout[:200]!r} {case.stderr[-200:]!r}"
            return f"{case.status} {case.detail} {output}"
    return verdict.status


def compare_resources(
    before: ResourceCounts, after: ResourceCounts, boxes: int
) -> list[ProbeResult]:
    """Compare the resources in use before and after the suite, with `boxes` running now."""
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
