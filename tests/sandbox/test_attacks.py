"""The attack suite on every backend this machine can run, and tests of the suite itself."""

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import get_args

import pytest

from flowzoo.sandbox.attacks import suite
from flowzoo.sandbox.attacks.probes import PROBES as SELF_CHECK
from flowzoo.sandbox.attacks.probes import AttackProbe, Category
from flowzoo.sandbox.attacks.suite import (
    Canaries,
    ProbeResult,
    ResourceCounts,
    compare_resources,
    count_resources,
    run_suite,
    settled_resources,
)
from flowzoo.sandbox.sandbox import Sandbox
from flowzoo.sandbox.tier import BACKENDS, SandboxName
from tests.sandbox.probes import PROBES

FIRST_TIER_ONLY = True

CONTROLLED = [probe for probe in PROBES if probe.control]
LANES = 3  # sandboxes that take the probes of a tier, each with one box
QUICK_CATEGORIES = ("escape", "network", "state")  # those that `make test` runs on every tier
# Files of probes on this machine would be taken for those of another run's.
pytestmark = pytest.mark.xdist_group("attacks")


def patient(probe: AttackProbe) -> AttackProbe:
    """The probe; one that must not time out has minutes, however the machine stalls.

    One that never ends need not be given much before it is ended.
    """
    limits = probe.limits
    if "TLE" not in probe.allowed:
        return replace(probe, limits=replace(limits, cpu_s=60.0, wall_s=300.0))
    if limits.cpu_s > 0.5:  # for what another limit stops
        return probe
    cpu, wall = (0.2, min(limits.wall, 0.5)) if probe.allowed == {"TLE"} else (0.3, limits.wall)
    return replace(probe, limits=replace(limits, cpu_s=cpu, wall_s=wall if limits.wall <= 1 else 4))


@pytest.fixture(autouse=True, scope="module")
def _patient_suite() -> Iterator[None]:
    # A box that hangs still shows: it costs the program after it more than this.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suite, "HONEST_S", 60.0)
        patch.setattr(suite, "SLACK_S", 60.0)
        yield


class Lanes:
    """Sandboxes that share probes: what one leaves meets the next one in its box."""

    def __init__(self, sandboxes: Sequence[Sandbox]) -> None:
        self.sandboxes = sandboxes
        self.findings: list[ProbeResult] = []
        self._lock = threading.Lock()

    def run(self, probes: Sequence[AttackProbe]) -> None:
        """Run the probes; the canaries are the same for all."""
        left = iter(probes)
        with (
            Canaries() as canaries,
            pytest.MonkeyPatch.context() as patch,
            ThreadPoolExecutor(len(self.sandboxes)) as threads,
        ):
            patch.setattr(suite, "Canaries", lambda: contextlib.nullcontext(canaries))
            for done in [threads.submit(self._take, sandbox, left) for sandbox in self.sandboxes]:
                done.result()

    def _take(self, sandbox: Sandbox, left: Iterator[AttackProbe]) -> None:
        for finding in run_suite(sandbox, self._share(left)):
            if finding.category != "load":  # which all of them make
                with self._lock:
                    self.findings.append(finding)

    def _share(self, left: Iterator[AttackProbe]) -> Iterator[AttackProbe]:
        while True:
            with self._lock:
                probe = next(left, None)
            if probe is None:
                return
            yield probe


@pytest.fixture(scope="module")
def findings(
    backend: SandboxName, _patient_suite: None, request: pytest.FixtureRequest
) -> list[ProbeResult]:
    """Results of all probes of the chosen categories, and of the load."""
    categories = {
        item.callspec.params["category"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_every_promise_of_the_tier_holds"
        and item.callspec.params["backend"] == backend
    }
    chosen = [patient(probe) for probe in PROBES if probe.category in categories]
    before = count_resources()
    with contextlib.ExitStack() as stack:
        sandboxes = [stack.enter_context(Sandbox(backend, workers=1)) for _ in range(LANES)]
        promised, rest = Lanes(sandboxes), Lanes(sandboxes[:1])
        promises = BACKENDS[backend].promises
        kept = [probe for probe in chosen if promises(probe.name, probe.category)]
        promised.run(kept)
        # They may touch the canaries, which would be blamed on whoever looks next.
        rest.run([probe for probe in chosen if probe not in kept])
        # Each has a box for programs and one for the code of tests.
        load = compare_resources(before, settled_resources(before), 2 * LANES)
    load += compare_resources(before, settled_resources(before), 0)
    return [*promised.findings, *rest.findings, *load]


@pytest.mark.parametrize(
    "category",
    [
        pytest.param(name, marks=[pytest.mark.every_tier] if name in QUICK_CATEGORIES else [])
        for name in get_args(Category)
    ],
)
def test_every_promise_of_the_tier_holds(findings, category):
    names = {probe.name for probe in PROBES if probe.category == category}
    assert {finding.name for finding in findings if finding.category == category} == names
    shown = [finding for finding in findings if finding.category in (category, "load")]
    assert len(shown) == len(names) + 6  # of the load: with the boxes and without them
    assert not [finding for finding in shown if finding.promised and not finding.ok]


def test_the_suite_finds_what_nothing_stops():
    """Under `unsafe` probes leak and touch canaries: their silence elsewhere means something."""
    chosen = [patient(p) for p in PROBES if p.category in ("escape", "network") and p.control]
    with Sandbox("unsafe", workers=1) as sandbox:
        findings = {finding.name: finding for finding in run_suite(sandbox, chosen)}
    run = {name: f for name, f in findings.items() if f.category != "load" and f.got != "not run"}
    assert len(run) > 15
    # The host passes no secret on, whatever the backend.
    assert [name for name, f in run.items() if f.ok] == ["secrets in the environment"]
    assert "touched" in findings["writes next to a file of the host"].note
    assert "touched" in findings["a port of the host"].note


@pytest.mark.skipif(os.geteuid() != 0, reason="some controls need root to reach their aim")
@pytest.mark.parametrize("probe", CONTROLLED, ids=lambda probe: probe.name)
def test_a_controlled_probe_leaks_outside_of_any_box(probe, tmp_path):
    # With the rights of the caller: such probes reach throw-away canaries, or have no effect.
    path = tmp_path / "probe.py"
    with Canaries() as canaries:
        path.write_text(canaries.fill(probe).source)
        command = [sys.executable, "-I", "-S", "-B", str(path)]
        done = subprocess.run(
            command, input=b"41\n", capture_output=True, timeout=120, check=False, cwd=tmp_path
        )
    assert done.stdout.startswith(b"leak")


def test_the_suite_is_as_large_as_it_says():
    names = Counter(probe.name for probe in PROBES)
    assert len(PROBES) >= 260
    assert len(SELF_CHECK) >= 30
    assert {probe.category for probe in SELF_CHECK} == set(get_args(Category))
    assert names.most_common(1)[0][1] == 1
    assert {probe.category for probe in PROBES} == set(get_args(Category))
    assert all(probe.allowed for probe in PROBES)


def test_limitations_name_existing_probes():
    names = {probe.name for probe in PROBES}
    for spec in BACKENDS.values():
        assert spec.limitations
        for limitation in spec.limitations:
            assert limitation.names <= names


def test_canaries_notice_every_touch():
    with Canaries() as canaries:
        assert canaries.touched() == []
        canaries.file.write_text("other")
        (canaries.folder / "new").touch()
        canaries.process.kill()
        canaries.process.wait()
        touched = canaries.touched()
        assert {"the file's text", "the folder", "the process's life"} <= set(touched)
        assert canaries.touched() == []
    assert not canaries.folder.exists()
    assert "FLOWZOO_CANARY" not in os.environ


def test_load_that_grew_is_a_finding():
    before, after = ResourceCounts(10, 0, 0), ResourceCounts(100, 1, 0)
    assert [finding.ok for finding in compare_resources(before, after, 1)] == [False, False, True]
