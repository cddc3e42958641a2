"""The attack suite on every backend this machine can run, and tests of the suite itself."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from flowzoo.sandbox.attacks import (
    CATEGORIES,
    LIMITS_OF_TIER,
    PROBES,
    run_control,
    run_suite,
    suite,
)
from flowzoo.sandbox.attacks.canaries import Canaries, ResourceCounts, count_resources
from flowzoo.sandbox.attacks.probe import AttackProbe
from flowzoo.sandbox.attacks.suite import compare_resources
from flowzoo.sandbox.sandbox import Sandbox

CONTROLLED = [probe for probe in PROBES if probe.control]


def patient(probe: AttackProbe) -> AttackProbe:
    """The probe; one that must not time out has minutes, however the machine stalls."""
    if "TLE" in probe.allowed:
        return probe
    return replace(probe, limits=replace(probe.limits, cpu_s=60.0, wall_s=300.0))


@pytest.fixture(autouse=True)
def _patient_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    """A box that hangs still shows: it costs the program after it more than this."""
    monkeypatch.setattr(suite, "HONEST_S", 60.0)
    monkeypatch.setattr(suite, "SLACK_S", 60.0)
    monkeypatch.setattr(suite, "CONTROL_S", 120.0)


@pytest.mark.serial
@pytest.mark.parametrize("category", CATEGORIES)
def test_every_promise_of_the_tier_holds(backend, category, monkeypatch: pytest.MonkeyPatch, soon):
    chosen = [patient(probe) for probe in PROBES if probe.category == category]
    before = count_resources().orphans

    def settled() -> ResourceCounts:
        soon(lambda: count_resources().orphans <= before)  # what was killed may not be dead yet
        return count_resources()

    monkeypatch.setattr(suite, "count_resources", settled)
    with Sandbox(backend, workers=1) as sandbox:
        findings = list(run_suite(sandbox, chosen))
    assert [f.name for f in findings[: len(chosen)]] == [probe.name for probe in chosen]
    assert not [finding for finding in findings if finding.promised and not finding.ok]


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
def test_a_controlled_probe_leaks_outside_of_any_box(probe):
    assert run_control(probe)


def test_the_suite_is_as_large_as_it_says():
    names = Counter(probe.name for probe in PROBES)
    assert len(PROBES) >= 260
    assert names.most_common(1)[0][1] == 1
    assert {probe.category for probe in PROBES} == set(CATEGORIES)
    assert all(probe.allowed for probe in PROBES)


def test_limitations_name_existing_probes():
    names = {probe.name for probe in PROBES}
    for limitations in LIMITS_OF_TIER.values():
        assert limitations
        for limitation in limitations:
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
