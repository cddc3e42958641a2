"""Values that cross between a program and a test that is code: as Python has them."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowzoo.sandbox import (
    CallTest,
    CheckTest,
    Compare,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    StdinTest,
)
from flowzoo.sandbox.runner import codec
from tests.sandbox.judging import PATIENT
from tests.tables import read_tables

FIRST_TIER_ONLY = True
TABLES = read_tables(__file__)
NUMBER = Compare("number")


@pytest.mark.parametrize(("definitions", "source", "code", "status"), TABLES["code"])
def test_values_in_a_test_that_is_code(sandbox, definitions, source, code, status):
    source = TABLES["definitions"][definitions] + source
    verdict = sandbox.run_sync([Program(source, "f")], [[CheckTest(code)]], PATIENT)[0]
    assert verdict.status == status, verdict.cases


@pytest.mark.parametrize(
    ("body", "expected", "status"),
    [
        *TABLES["calls"],
        ("from collections import namedtuple; return namedtuple('P', 'a')(1)", (1,), "AC"),
    ],
)
def test_values_of_calls(sandbox, body, expected, status):
    tests = [CallTest((), expected, {}, NUMBER)]
    verdict = sandbox.run_sync([Program(f"def f():\n    {body}", "f")], [tests], PATIENT)[0]
    assert verdict.status == status, verdict.cases


@pytest.mark.every_tier
def test_what_a_program_reads_is_there_on_every_tier(sandbox):
    programs = [Program(source) for source in TABLES["reads"].values()]
    verdicts = sandbox.run_sync(programs, [[StdinTest("41", "41")]] * len(programs), PATIENT)
    bad = [(n, v.cases) for n, v in zip(TABLES["reads"], verdicts, strict=True) if v.status != "AC"]
    assert not bad


def test_other_files_are_opened_as_ever(sandbox):
    source = "try:\n    open('/no/such')\nexcept FileNotFoundError as error:\n    print(error)"
    expected = "[Errno 2] No such file or directory: '/no/such'"
    verdict = sandbox.run_sync([Program(source)], [[StdinTest("", expected)]], PATIENT)[0]
    assert verdict.status == "AC", verdict.cases


def test_all_tests_of_a_program_have_one_budget(sandbox):
    limits = Limits(cpu_s=0.2, wall_s=300.0, total_s=0.5)
    tests = [StdinTest("", "x")] * 30
    verdict = sandbox.run_sync([Program("while True: pass")], [tests], limits)[0]
    assert (verdict.status, len(verdict.cases), verdict.total) == ("TLE", 30, 30)
    ran = [case for case in verdict.cases if case.cpu_s > 0]
    assert 1 < len(ran) < 10
    assert verdict.cases[-1].detail.startswith("total: ")
    limits = Limits(cpu_s=60.0, wall_s=300.0, total_s=60.0)
    assert sandbox.run_sync([Program("print('x')")], [tests], limits)[0].status == "AC"


SLOW = "import time\ndef f(x):\n    end = time.process_time() + 0.1\n" \
       "    while time.process_time() < end: pass\n    return x"  # fmt: skip


def test_checks_of_a_program_have_one_budget(sandbox):
    limits = Limits(cpu_s=0.3, wall_s=300.0, total_s=0.25)
    tests = [CheckTest(f"assert f({n}) == {n}") for n in range(10)]
    verdict = sandbox.run_sync([Program(SLOW, "f")], [tests], limits)[0]
    ran = [case for case in verdict.cases if case.status == "AC"]
    assert (verdict.status, len(verdict.cases)) == ("TLE", 10)
    assert 1 < len(ran) < 4
    assert all(case.cpu_s >= 0.1 for case in ran)
    assert verdict.cases[-1].detail.startswith("total: ")


@pytest.mark.full
@pytest.mark.of_host
def test_each_call_of_a_check_has_its_own_clock(sandbox):
    code = "for n in range(5):\n    assert f(n) == n"
    limits = Limits(cpu_s=0.3, wall_s=300.0)
    assert sandbox.run_sync([Program(SLOW, "f")], [[CheckTest(code)]], limits)[0].status == "AC"
    many = CheckTest(code.replace("5", "60"))
    assert sandbox.run_sync([Program(SLOW, "f")], [[many]], limits)[0].status == "TLE"


@pytest.mark.every_tier
def test_numpy_is_there_if_it_is_asked_for(backend):
    source = "import numpy as np\ndef f(x):\n    return float(np.arange(x).sum())"
    test = CheckTest(
        "import numpy as np\nfor n in range(9):\n    assert np.isclose(f(n), sum(range(n)))"
    )
    with Sandbox(backend, workers=1, packages=["numpy"]) as sandbox:
        verdict = sandbox.run_sync([Program(source, "f")], [[test]], PATIENT)[0]
        assert verdict.status == "AC", verdict.cases
        other = Program("import numpy.fft, threading\nprint(threading.active_count())\nimport yaml")
        case = sandbox.run_sync([other], [[StdinTest("", "1")]], PATIENT)[0].cases[0]
        assert (case.status, case.stdout) == ("RE", "1\n")
        assert "No module named 'yaml'" in case.stderr
        assert set(sandbox.describe()["packages"]) == {"numpy"}
    with Sandbox(backend, workers=1) as sandbox:
        verdict = sandbox.run_sync([Program("import numpy")], [[StdinTest("", "")]], PATIENT)[0]
        assert "No module named 'numpy'" in verdict.cases[0].stderr


@pytest.mark.skipif(os.name != "posix", reason="folders of programs under `unsafe`")
def test_a_killed_box_without_isolation_leaves_no_files(tmp_path, monkeypatch, soon):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "open('x', 'w').write('y')\nwhile True: pass"
    with Sandbox("unsafe", workers=1) as sandbox, ThreadPoolExecutor(1) as threads:
        future = threads.submit(
            sandbox.run_sync, [Program(source)], [[StdinTest("", "")]], PATIENT, on_error="verdict"
        )
        assert soon(lambda: list(tmp_path.rglob("x")))
        sandbox.close_sync()
        with pytest.raises(SandboxError):
            future.result(60)
    assert list(tmp_path.iterdir()) == []


def test_what_the_machine_kills_for_want_of_memory_is_told_from_other_ends(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(codec.__file__).parent))
    from workspace import OomKills  # pyright: ignore[reportMissingImports]

    counter = tmp_path / "vmstat"
    counter.write_text("nr_free_pages 5\noom_kill 3\n")
    folder = os.open(tmp_path, os.O_RDONLY)
    kills = OomKills(("absent", "vmstat"), folder)
    os.close(folder)
    assert not kills.more()
    counter.write_text("nr_free_pages 5\noom_kill 4\n")
    assert kills.more()
    assert not kills.more()
    assert not OomKills(("absent",)).more()
