import json
from dataclasses import replace

import pytest

from flowzoo.cli import main
from flowzoo.commands import sandbox as command
from flowzoo.sandbox.attacks import suite
from flowzoo.sandbox.attacks.probes import PROBES
from flowzoo.sandbox.program import Limits

FIRST_TIER_ONLY = True


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
