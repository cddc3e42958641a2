"""The sandbox with boxes that die, hang, lie or do not start: nothing is lost, nothing hangs."""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowzoo.errors import UsageError
from flowzoo.sandbox import local
from flowzoo.sandbox import sandbox as api
from flowzoo.sandbox.backends import Backend, BoxError
from flowzoo.sandbox.box import box
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.box.engine import SandboxError
from flowzoo.sandbox.judge import CaseOutcome
from flowzoo.sandbox.program import Case, Limits, Program, StdinTest
from flowzoo.sandbox.sandbox import Sandbox

FAKE = Path(__file__).with_name("fake_box.py")
ECHO = [StdinTest("a", "a"), StdinTest("b", "b")]


@pytest.fixture(autouse=True)
def _fake_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "RUNNER", FAKE)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox("unsafe", workers=2) as sandbox:
        yield sandbox


@pytest.mark.parametrize(
    "fault", ["die", "garbage", "otherid", "setup", "broken", "short", "killed"]
)
def test_a_box_that_fails_once_costs_nothing(sandbox, tmp_path, fault):
    program = Program(f"once:{tmp_path / 'done'}:{fault}")
    [verdict] = sandbox.run_sync([program], [ECHO])
    assert verdict.status == "AC"
    assert verdict.passed == 2
    assert verdict.facts == {"retried": True}
    assert sandbox.run_sync([Program("x")], [ECHO])[0].facts == {}


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("die", "ended with status 3: Fatal: the box was asked to die"),
        ("garbage", "broke the protocol"),
        ("otherid", "another job"),
        ("setup", "could not start the program"),
        ("broken", "the disk is full"),
        ("short", "after 1 of 2 cases"),
    ],
)
def test_a_box_that_fails_twice_is_an_error_after_all_others_are_judged(sandbox, fault, message):
    programs = [Program("x"), Program(fault), Program("y"), Program("z")]
    with pytest.raises(SandboxError, match=r"1 of 4 programs.*programs\[1\]") as caught:
        sandbox.run_sync(programs, [ECHO] * 4)
    assert message in str(caught.value)
    assert "unsafe" in str(caught.value)
    assert [verdict.status for verdict in caught.value.verdicts] == ["AC", "SE", "AC", "AC"]
    verdicts = sandbox.run_sync(programs, [ECHO] * 4, on_error="verdict")
    assert [verdict.status for verdict in verdicts] == ["AC", "SE", "AC", "AC"]
    assert verdicts[1].fraction == 0.0
    assert verdicts[1].total == 2


def test_only_a_second_kill_is_the_programs_own(sandbox, tmp_path):
    once = f"once:{tmp_path / 'done'}:"
    programs = [Program("killed"), Program(f"{once}die killed")]
    verdicts = sandbox.run_sync(programs, [ECHO] * 2)
    assert [verdict.status for verdict in verdicts] == ["RE"] * 2
    assert {verdict.cases[0].detail for verdict in verdicts} == {"signal 9"}
    assert all(verdict.facts == {"retried": True} for verdict in verdicts)


@pytest.mark.parametrize("kills", [1, 2])
def test_a_first_box_that_is_killed_while_it_opens_is_replaced(monkeypatch, kills):
    start, pids = local.LocalBackend.start, []

    async def start_and_kill(backend: local.LocalBackend) -> local.ProcessConnection:
        connection = await start(backend)
        pids.append(connection.pid)
        if len(pids) <= kills:
            os.kill(connection.pid, signal.SIGKILL)
        return connection

    monkeypatch.setattr(local.LocalBackend, "start", start_and_kill)
    with Sandbox("unsafe", workers=1) as sandbox:
        assert sandbox.run_sync([Program("x")], [ECHO])[0].status == "AC"
        assert sandbox.box_pids() == pids[kills:]


@pytest.mark.full
def test_a_hung_box_is_killed_and_the_others_go_on(sandbox, monkeypatch):
    monkeypatch.setattr(box_run, "SLACK", 0.3)
    programs = [Program("hang"), *[Program("x")] * 20]
    limits = [Limits(cpu_s=0.1, wall_s=0.2), *[Limits()] * 20]
    verdicts = sandbox.run_sync(programs, [ECHO] * 21, limits, on_error="verdict")
    assert [verdict.status for verdict in verdicts] == ["SE"] + ["AC"] * 20
    assert "did not answer within 2.1 s" in verdicts[0].cases[0].detail


def test_a_box_that_does_not_read_is_killed(sandbox, monkeypatch):
    sandbox.run_sync([Program("x")], [ECHO])
    [pid] = sandbox.box_pids()
    os.kill(pid, signal.SIGSTOP)
    patient, kill = box.SEND_SECONDS, box.Box.kill

    async def kill_and_be_patient(stopped: box.Box) -> None:
        monkeypatch.setattr(box, "SEND_SECONDS", patient)
        await kill(stopped)

    monkeypatch.setattr(box.Box, "kill", kill_and_be_patient)
    monkeypatch.setattr(box, "SEND_SECONDS", 0.5)
    large = [StdinTest("x" * 4_000_000, "x" * 4_000_000)]
    run = sandbox.run([Program("x")], [large], Limits(output_bytes=2**23))
    [verdict] = asyncio.run(asyncio.wait_for(run, 100))
    assert (verdict.status, verdict.facts) == ("AC", {"retried": True})
    assert pid not in sandbox.box_pids()


def test_an_unclean_box_is_replaced_and_its_verdict_stands(sandbox):
    sandbox.run_sync([Program("x")], [ECHO])
    before = sandbox.box_pids()
    assert sandbox.run_sync([Program("unclean")], [ECHO])[0].status == "AC"
    assert sandbox.run_sync([Program("x")], [ECHO])[0].status == "AC"
    assert not set(before) & set(sandbox.box_pids())


def test_boxes_are_replaced_after_so_many_programs():
    with Sandbox("unsafe", workers=1, recycle_after=3) as sandbox:
        seen = []
        for _ in range(7):
            sandbox.run_sync([Program("x")], [ECHO])
            seen += [pid for pid in sandbox.box_pids() if pid not in seen]
        assert len(seen) == 3


def test_an_idle_box_that_died_is_replaced_without_a_retry(sandbox, soon):
    sandbox.run_sync([Program("x")], [ECHO])
    [pid] = sandbox.box_pids()
    [idle] = sandbox._engine.boxes()  # pyright: ignore
    os.kill(pid, signal.SIGKILL)
    assert soon(lambda: not idle.reusable)  # its end has been seen
    assert sandbox.run_sync([Program("x")], [ECHO])[0].facts == {}
    assert sandbox.box_pids() != [pid]


def test_boxes_that_cannot_be_started_fail_every_program_soon(sandbox, monkeypatch):
    sandbox.run_sync([Program("x")], [ECHO])
    [pid] = sandbox.box_pids()
    monkeypatch.setattr(local.sys, "executable", "/nowhere/python")
    os.kill(pid, signal.SIGKILL)
    starts = []
    start = local.LocalBackend.start

    async def count(backend: local.LocalBackend) -> local.ProcessConnection:
        starts.append(backend)
        return await start(backend)

    monkeypatch.setattr(local.LocalBackend, "start", count)
    with pytest.raises(SandboxError, match=r"200 of 200.*no unsafe box starts.*No such file"):
        sandbox.run_sync([Program("x")] * 200, [ECHO] * 200)
    assert 0 < len(starts) < 20  # not some for each program, with a pause before each
    monkeypatch.undo()
    monkeypatch.setattr(local, "RUNNER", FAKE)
    assert sandbox.run_sync([Program("x")], [ECHO])[0].status == "AC"  # it recovers


def test_a_backend_asked_for_by_name_never_falls_back():
    with Sandbox("landlock") as sandbox, pytest.raises(UsageError) as caught:
        _ = sandbox.tier
    assert "landlock: it reports: this kernel has no Landlock" in str(caught.value)
    assert "A named backend has no fallback" in str(caught.value)


def test_auto_fails_closed_and_says_why(monkeypatch):
    def refuse(name: str, options: object, packages: object) -> Backend:
        raise BoxError(f"no {name} here.")

    monkeypatch.setattr(api, "make_backend", refuse)
    with Sandbox() as sandbox:
        for _ in range(2):
            with pytest.raises(UsageError, match="untrusted code is not run") as caught:
                sandbox.run_sync([Program("x")], [ECHO])
            for tier in ("docker", "namespaces", "landlock"):
                assert f"no {tier} here" in str(caught.value)
            assert not re.search(r"\.[.;]", str(caught.value))
            assert "unsafe" in str(caught.value)
            assert "no unsafe here" not in str(caught.value)


def test_auto_takes_the_next_tier(caplog, monkeypatch):
    monkeypatch.setattr(api, "_logged", set())
    caplog.set_level(logging.INFO, "flowzoo.sandbox")
    make = api.make_backend

    def no_docker(name: str, options: object, packages: object) -> Backend:
        if name == "docker":
            raise BoxError("no engine")
        return make(name, {})

    monkeypatch.setattr(api, "make_backend", no_docker)
    with Sandbox() as sandbox:
        assert sandbox.run_sync([Program("x")], [ECHO])[0].tier == "namespaces"
        assert sandbox.describe()["asked"] == "auto"
    assert "not taken: docker: no engine" in caplog.text


def test_the_trust_level_is_stated_once(caplog, monkeypatch):
    monkeypatch.setattr(api, "_logged", set())
    caplog.set_level(logging.INFO, "flowzoo.sandbox")
    for _ in range(2):
        with Sandbox("unsafe") as sandbox:
            assert sandbox.trust.startswith("unsafe")
    lines = [record for record in caplog.records if record.name == "flowzoo.sandbox"]
    assert [record.levelno for record in lines] == [logging.WARNING]


def test_a_defect_in_judging_loses_no_other_program(sandbox, monkeypatch):
    judge = box_run.judge_stdin

    def breaks(outcomes: list[CaseOutcome], tests: list[StdinTest]) -> list[Case]:
        return judge(outcomes, tests) if tests[0].stdin == "a" else [][0]

    monkeypatch.setattr(box_run, "judge_stdin", breaks)
    tests = [ECHO, [StdinTest("c", "c")], ECHO]
    with pytest.raises(SandboxError, match=r"internal error of the sandbox.*IndexError") as caught:
        sandbox.run_sync([Program("x")] * 3, tests)
    assert [verdict.status for verdict in caught.value.verdicts] == ["AC", "SE", "AC"]


def test_limits_that_the_tier_cannot_enforce(sandbox):
    with pytest.raises(UsageError, match=r"memory_mb=1:.*at least"):
        sandbox.run_sync([Program("x")], [ECHO], Limits(memory_mb=1))
