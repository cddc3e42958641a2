"""Backends: which a machine offers, how a package adds one, and `flowzoo sandbox`."""

import json
import platform
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flowzoo import plugins
from flowzoo.cli import main
from flowzoo.commands import sandbox as command
from flowzoo.errors import UsageError
from flowzoo.extras import remedy
from flowzoo.plugins import SANDBOX_GROUP, Plugin
from flowzoo.sandbox import Sandbox, tier
from flowzoo.sandbox.attacks import suite
from flowzoo.sandbox.attacks.probes import PROBES
from flowzoo.sandbox.program import Limits
from flowzoo.sandbox.testing import check_backend
from tests.sandbox import example_backend

FIRST_TIER_ONLY = True
linux = pytest.mark.skipif(platform.system() != "Linux", reason="a kernel interface of Linux")


@pytest.mark.parametrize(
    ("docker", "namespaces", "landlock", "seccomp", "expected"),
    [
        (True, True, 5, True, "docker"),
        (True, False, 0, False, "docker"),
        (False, True, 5, True, "namespaces"),
        (False, True, 0, True, "namespaces"),
        (False, False, 1, True, "landlock"),
        (False, True, 5, False, "none"),
        (False, False, 5, False, "none"),
        (False, False, 0, True, "none"),
    ],
)
def test_the_best_working_tier_is_chosen(
    monkeypatch, docker, namespaces, landlock, seccomp, expected
):
    monkeypatch.setattr(tier.platform, "system", lambda: "Linux")
    monkeypatch.setattr(tier, "probe_docker", lambda: tier.TierCheck(docker, ""))
    monkeypatch.setattr(tier, "probe_namespaces", lambda: tier.TierCheck(namespaces, ""))
    monkeypatch.setattr(tier, "landlock_abi", lambda: landlock)
    monkeypatch.setattr(tier, "has_seccomp", lambda: seccomp)
    assert tier.probe().name == expected


def test_an_unknown_backend_is_refused_with_near_matches():
    with pytest.raises(UsageError, match="Did you mean 'namespaces'"):
        tier.check_sandbox("namespace")
    assert tier.backend_names()[0] == "auto"


@pytest.mark.parametrize("module", [True, False])
def test_an_absent_engine_or_module_is_a_reason_and_no_exception(monkeypatch, module):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/engine.sock")
    if module:
        pytest.importorskip("docker")
    else:
        monkeypatch.setitem(sys.modules, "docker", None)
    check = tier.probe_docker()
    assert not check.ok
    assert ("No such file" if module else remedy("docker")) in check.detail


@linux
def test_probe_agrees_with_its_parts_and_leaves_this_process_where_it_was():
    namespaces = [(path.name, path.readlink()) for path in Path("/proc/self/ns").iterdir()]
    best = tier.probe()
    assert [(path.name, path.readlink()) for path in Path("/proc/self/ns").iterdir()] == namespaces
    assert best.name == next((name for name, check in best.checks.items() if check.ok), "none")
    assert best.trust.startswith(f"{best.name}: ")
    assert "\n" not in best.trust
    assert best.checks["namespaces"].detail


@linux
def test_a_refused_namespace_is_a_reason(monkeypatch):
    monkeypatch.setattr(tier, "_NAMESPACE_TEST", "print('unshare: refused'); raise SystemExit(1)")
    assert tier.probe_namespaces() == tier.TierCheck(False, "unshare: refused")


@linux
def test_landlock_and_seccomp_agree_with_what_the_kernel_says():
    modules = Path("/sys/kernel/security/lsm")
    if modules.exists():
        assert (tier.landlock_abi() > 0) == ("landlock" in modules.read_text().split(","))
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    assert tier.has_seccomp() == actions.exists()


def test_off_linux_only_docker_counts(monkeypatch):
    monkeypatch.setattr(tier.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(tier, "probe_docker", lambda: tier.TierCheck(False, "no engine"))
    best = tier.probe()
    assert best.name == "none"
    assert "Darwin" in best.checks["namespaces"].detail
    monkeypatch.setattr(tier, "probe_docker", lambda: tier.TierCheck(True, "engine 27"))
    assert tier.probe().name == "docker"


NICE = Plugin("nice", "tests.sandbox.example_backend:SPEC", "nice-sandbox 1.0")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers the backend `nice`."""
    offers = dict.fromkeys(plugins.GROUPS, ()) | {SANDBOX_GROUP: (NICE,)}
    monkeypatch.setattr(plugins, "_plugins", lambda path: offers)


@pytest.mark.full
@pytest.mark.xdist_group("attacks")
@pytest.mark.parametrize("name", ["namespaces", "landlock", "unsafe"])
def test_our_backends_conform(name, monkeypatch):
    if not tier.BACKENDS[name].check().ok:
        pytest.skip(f"{name} does not work here")
    for limit in ("HONEST_S", "SLACK_S"):  # of a machine that is quiet
        monkeypatch.setattr(suite, limit, 60.0)
    check_backend(name)


@pytest.mark.xdist_group("attacks")
@pytest.mark.usefixtures("installed")
def test_a_backend_of_a_package_is_found_by_its_name_and_conforms():
    if not tier.BACKENDS["namespaces"].check().ok:
        pytest.skip("namespaces do not work here")
    check_backend("nice", attacks=False)
    assert "nice" in tier.backend_names()


@pytest.mark.usefixtures("installed")
def test_a_package_must_offer_a_spec_of_that_name(monkeypatch):
    monkeypatch.setattr(example_backend, "SPEC", "nice")
    with pytest.raises(UsageError, match="must be a BackendSpec with the name 'nice'"):
        Sandbox("nice")


def test_the_check_notices_a_backend_that_does_not_work(monkeypatch):
    broken = tier.BackendSpec(
        name="broken", trust="broken: nothing", target="x:Y",
        check=lambda: tier.TierCheck(False, "no such machine"),
    )  # fmt: skip
    monkeypatch.setitem(tier.BACKENDS, "broken", broken)
    with pytest.raises(AssertionError, match="no such machine"):
        check_backend("broken")


@pytest.mark.full
def test_build_prints_the_image(docker, capsys):
    assert main(["sandbox", "build"]) == 0
    assert capsys.readouterr().out.startswith("flowzoo-sandbox:py")


def test_build_without_an_engine(monkeypatch, capsys):
    monkeypatch.setenv("DOCKER_HOST", "unix:///absent.sock")
    pytest.importorskip("docker")
    assert main(["sandbox", "build"]) == 2
    assert "no Docker engine answers" in capsys.readouterr().err


def test_docker_options_need_docker(capsys):
    args = ["sandbox", "check", "--backend", "landlock", "--runtime", "runsc", "--user", "nonroot"]
    assert main(args) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "--runtime, --user: only with --backend docker" in message


@pytest.mark.xdist_group("attacks")  # files of probes would count as left by these programs
def test_check_prints_findings_and_limits(confining, monkeypatch, capsys):
    some = [
        replace(probe, limits=Limits(cpu_s=60.0, wall_s=300.0))
        for probe in PROBES
        if probe.category == "honest"
    ][:3]
    run_suite = suite.run_suite
    monkeypatch.setattr(command, "run_suite", lambda sandbox: run_suite(sandbox, some))
    monkeypatch.setattr(suite, "HONEST_S", 60.0)
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["sandbox", "check", "--backend", confining]) == 0
    text = capsys.readouterr().out
    for probe in some:
        assert probe.name in text
    assert f"What the tier {confining} cannot promise" in text


@pytest.mark.xdist_group("attacks")
def test_a_broken_promise_is_status_1(confining, monkeypatch, capsys):
    honest = next(probe for probe in PROBES if probe.category == "honest")
    impossible = [
        honest.__class__(name="x", category="honest", source="", allowed=frozenset("TLE"))
    ]
    run_suite = suite.run_suite
    monkeypatch.setattr(command, "run_suite", lambda sandbox: run_suite(sandbox, impossible))
    assert main(["sandbox", "check", "--backend", confining, "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (rows[0]["name"], rows[0]["ok"], rows[0]["promised"]) == ("x", False, True)
