"""Tests that are code: dishonest answers, values that cross, clocks; no fault of the sandbox."""

import os
import random
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from processes import wait_for

from flowzoo.sandbox import (
    CallTest,
    CheckTest,
    Compare,
    Limits,
    Program,
    Sandbox,
    SandboxError,
    StdinTest,
    Test,
)
from flowzoo.sandbox.box import run as box_run
from flowzoo.sandbox.runner import codec
from tests.sandbox.judging import PATIENT, judge
from tests.tables import read_tables

TABLES = read_tables(__file__)

FIRST_TIER_ONLY = True
HASTY = Limits(cpu_s=0.3, wall_s=0.5)  # for streams that leave the other side waiting
STREAMS = 2000  # fuzzed streams for each tier; `make test` takes every fortieth
# Number of them that all tests try; FLOWZOO_STREAMS=2000 tries every one, minutes a tier.
OF_THEM = int(os.environ.get("FLOWZOO_STREAMS", "200"))
SECRET = 4_815_162_342_108


RAW = """
import os, struct
def say(kind, content=b""):
    data = struct.pack("<I", 1 + len(content)) + kind + content
    while data:
        data = data[os.write(3, data):]
def f(*args, **kwargs):
    for content in {contents!r}:
        say(b"Q", content)
    import time
    time.sleep(600)
"""

ANSWERS: dict[str, list[bytes]] = {
    "list that says raised": [b"E" + codec.encode(["SyntaxError", "x"])],
    "raised with three parts": [b"E" + codec.encode(("SyntaxError", "x", "y"))],
    "raised with one part": [b"E" + codec.encode(("SyntaxError",))],
    "raised with a number for a name": [b"E" + codec.encode((7, "x"))],
    "raised with a number for a message": [b"E" + codec.encode(("SyntaxError", 7))],
    "raised with bytes": [b"E" + codec.encode((b"SyntaxError", b"x"))],
    "raised nothing": [b"E"],
    "raised None": [b"E" + codec.encode(None)],
    "raised a dict": [b"E" + codec.encode({"SyntaxError": "x", "b": "c"})],
    "raised a text of two letters": [b"E" + codec.encode("ab")],
    "raised a class of no exception": [b"E" + codec.encode(("print", "x"))],
    "raised SystemExit": [b"E" + codec.encode(("SystemExit", "0"))],
    "raised a surrogate": [b"E" + codec.encode(("\ud800", "\ud800"))],
    "old tuple": [codec.encode(("raised", "SyntaxError", "x"))],
    "empty": [b""],
    "no kind": [b"\0"],
    "a call": [b"C" + codec.encode(((), {}))],
    "no more answers": [b"Z"],
    "unreadable": [b"?"],
    "departed": [b"~"],
    "returned nothing": [b"R"],
    "returned half": [b"R" + codec.encode([1, 2, 3])[:-2]],
    "returned twice": [b"R" + codec.encode(1) * 2],
    "returned too deep": [b"R" + b"L\x01\0\0\0" * 60 + b"N"],
    "returned a length without content": [b"R" + b"L\xff\xff\xff\x7f"],
    "returned many": [b"R" + codec.encode(0)] * 50,
    "a name of no result": [b"R" + codec.encode(codec.Remote("x"))],
    "a result without its facts": [b"R" + codec.encode(codec.Remote(""))],
    "a result of other facts": [b"R" + codec.encode(codec.Remote("", ("x", 1, 0, True)))],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_that_break_the_protocol(sandbox, name):
    source = RAW.format(contents=ANSWERS[name])
    code = f"def check(g):\n    assert g(1) == {SECRET}\n    assert g(2) == {SECRET}"
    verdict = judge(sandbox, source, CheckTest(code, "check(candidate)"), HASTY)
    assert verdict.status in ("RE", "WA", "TLE"), verdict


@pytest.mark.parametrize(("body", "code"), TABLES["upon_an_answer"])
def test_what_a_test_does_upon_an_answer_blames_the_program(sandbox, body, code):
    limits = Limits(cpu_s=0.2, wall_s=300.0)
    verdict = judge(sandbox, f"def f(x):\n    {body}", CheckTest(code), limits)
    assert verdict.status in ("WA", "RE", "MLE", "TLE", "OLE"), verdict


@pytest.mark.parametrize(("source", "code", "status", "detail"), TABLES["calls"])
def test_a_check_calls_the_program_in_another_box(sandbox, source, code, status, detail):
    test = CheckTest(f"def check(c):\n  {code}", "check(candidate)", setup="import math")
    [case] = judge(sandbox, source, test).cases
    assert case.status == status
    assert case.detail.startswith(detail)


@pytest.mark.parametrize(
    "code", ["import nowhere\nassert f(1) == 2", "import os\nos._exit(0)", "assert ("]
)
def test_what_fails_before_any_answer_is_the_tests_own_fault(sandbox, code):
    verdict = judge(sandbox, "def f(x):\n    return 2", CheckTest(code))
    assert verdict.status == "SE"
    assert "the test's own code failed" in verdict.cases[0].detail


ENDLESS = Limits(cpu_s=0.1, wall_s=0.5)


@pytest.mark.parametrize(("code", "status"), TABLES["endless"])
def test_only_a_test_that_never_ends_whatever_it_is_answered_blames_no_program(
    sandbox, code, status
):
    verdict = judge(sandbox, "def f(x):\n    return x", CheckTest(code), ENDLESS)
    assert verdict.status in status.split(), verdict
    assert verdict.facts == ({"test_failed": True} if verdict.status == "SE" else {})
    if verdict.status == "SE":
        assert "the test's own code failed: it does not end" in verdict.cases[0].detail


@pytest.mark.parametrize("name", TABLES["in_place"])
def test_arguments_that_are_changed_in_place_reach_the_test(sandbox, name):
    body, code = TABLES["in_place"][name]
    program = f"def f(a, b=None):\n    {body}"
    assert judge(sandbox, program, CheckTest(code)).status == "AC"
    assert judge(sandbox, "def f(a, b=None): pass", CheckTest(code)).status in ("WA", "RE")


OBJECTS = """
class A:
    def __init__(self, n): self.n = n
def f(xs): return [x.n for x in xs]
"""


def test_what_no_test_can_see_of_a_changed_argument(sandbox):
    objects = "xs = [A(1), A(2)]\nf(xs)\nassert f(xs) == [1, 2]"
    assert judge(sandbox, OBJECTS, CheckTest(objects)).status == "AC"
    unplain = CheckTest("a = [0]\nf(a)\nassert a == [0] or a == [0, 1]")
    assert judge(sandbox, "def f(a): a.append(object())", unplain).status == "WA"
    large = judge(sandbox, "def f(a): a.extend([0] * 10**6)", CheckTest("f([1])"))
    assert (large.status, large.cases[0].detail) == ("OLE", "output")
    for changes in (b"", b"\xff\xff\xff\xff", b"\2\0\0\0xy", codec.encode([(7, True, 1)])):
        forged = RAW.format(contents=[b"A" + changes + b"R" + codec.encode(None)])
        assert judge(sandbox, forged, CheckTest("f([1])"), HASTY).status in ("RE", "TLE")


CHECKS = TABLES["look_ahead"] | {
    "many lines": "\n".join(f"assert f({n}) == {n}" for n in range(60)),
    "denied": "\n".join(f"assert not f({n}) != {n}" for n in range(60)),
}
ECHO = "def f(x):\n    if x == -1:\n        raise ValueError('no')\n    return x"


@pytest.mark.usual(8)
@pytest.mark.of_host
@pytest.mark.parametrize("name", CHECKS)
def test_a_look_ahead_changes_no_verdict(sandbox, monkeypatch, name):
    test = CheckTest(CHECKS[name])
    late = ECHO.replace("return x", "return 7 if x == 23 else x")
    early = ECHO.replace("return x", "return None if x == 0 else x")
    counting = f"count = 0\n{ECHO}".replace("    return x", "    global count\n    count += 1\n    "
                                             "return x if count < 20 else -x")  # fmt: skip
    sources = [ECHO, late, early, counting]
    ahead = [judge(sandbox, source, test).status for source in sources]
    check_session = box_run.CheckSession
    in_step = lambda *args: check_session(*args[:3], False, args[4])  # noqa: E731
    monkeypatch.setattr(box_run, "CheckSession", in_step)
    assert [judge(sandbox, source, test).status for source in sources] == ahead
    assert ahead[0] == "AC"
    assert "SE" not in ahead


def test_the_program_is_called_in_the_order_of_the_test(sandbox):
    source = "calls = []\ndef f(x):\n    calls.append(x)\n    return list(calls)"
    code = "for n in range(200):\n    assert f(n) == list(range(n + 1))"
    assert judge(sandbox, source, CheckTest(code)).status == "AC"
    jumps = "for n in range(90):\n    if len(f(n)) == 50:\n        f('50')\nassert f(0)[50] == '50'"
    assert judge(sandbox, source, CheckTest(jumps)).status == "AC"


@pytest.mark.parametrize(
    ("at", "what", "status"),
    [
        (150, "import os; os._exit(0)", "RE"),
        (150, "while True: pass", "TLE"),
        (150, "return bytearray(10**10)", "MLE"),
        (150, "return 'x' * 10**6", "OLE"),
        (150, "return 7", "WA"),
        (150, "raise KeyError(1)", "RE"),
        (20, "return 7", "WA"),
    ],
)
def test_what_comes_first_in_the_test_counts(sandbox, at, what, status):
    """Calls that run ahead of a wrong answer neither save a program nor change its fault."""
    then = "import os; os._exit(0)" if at == 20 else "pass"
    source = f"def f(x):\n  if x == {at}:\n    {what}\n  if x == 180:\n    {then}\n  return x"
    code = "for n in range(200):\n    assert f(n) == n"
    limits = Limits(cpu_s=0.5, wall_s=300.0) if status == "TLE" else PATIENT
    assert judge(sandbox, source, CheckTest(code), limits).status == status


@pytest.mark.full
def test_waiting_for_the_other_half_costs_no_time(sandbox):
    """The clock on the wall of either half stands still while the other one works."""
    limits = Limits(cpu_s=60.0, wall_s=2.0)
    slow_test = "import time\nfor n in range(3):\n    assert f(n) == n\n    time.sleep(0.4)"
    slow = "import time\ndef f(x):\n    time.sleep(0.4)\n    return x"
    assert judge(sandbox, slow, CheckTest(slow_test), limits).status == "AC"


def fuzzed_value(rng: random.Random, depth: int = 0) -> Any:
    kinds = 12 if depth < 3 else 8
    return [
        lambda: None, lambda: rng.random() < 0.5, lambda: rng.randint(-9, 9),
        lambda: rng.getrandbits(rng.choice([8, 64, 4000])), lambda: rng.choice([0.0, 1e308, -0.5]),
        lambda: rng.choice(["", "raised", "SyntaxError", "ModuleNotFoundError", "\ud800"]),
        lambda: bytes(rng.getrandbits(8) for _ in range(rng.randint(0, 9))), lambda: 1j,
        lambda: [fuzzed_value(rng, depth + 1) for _ in range(rng.randint(0, 4))],
        lambda: tuple(fuzzed_value(rng, depth + 1) for _ in range(rng.randint(0, 4))),
        lambda: {rng.randint(0, 9): fuzzed_value(rng, depth + 1) for _ in range(3)},
        lambda: {rng.randint(0, 99) for _ in range(5)},
    ][rng.randrange(kinds)]()  # fmt: skip


def fuzzed_content(rng: random.Random) -> bytes:
    content = codec.encode(fuzzed_value(rng))
    if rng.random() < 0.3:
        content = codec.encode(
            (rng.choice(["SyntaxError", "MemoryError", "é"]), "x" * rng.randint(0, 400))
        )
    if rng.random() < 0.3:
        cut = rng.randint(0, len(content))
        content = content[:cut] + bytes(rng.getrandbits(8) for _ in range(rng.randint(0, 12)))
    if rng.random() < 0.05:
        content *= rng.choice([100, 20_000])
    return rng.choice([b"R", b"E", b"U", b"C", b"Z", b"?", b"~", b"", b"Q"]) + content


def fuzzed_stream(rng: random.Random) -> bytes:
    """Records as a program could write them, whole and broken."""
    data = b""
    for _ in range(rng.choice([1, 1, 2, 3, 40])):
        kind = rng.choice([b"Q"] * 8 + [bytes([n]) for n in b"SFXCLREMUO"] + [b"\0", b"\xff"])
        body = kind + fuzzed_content(rng)
        size = len(body) if rng.random() < 0.9 else rng.choice([0, 1, 7, 2**16, 2**31, 2**32 - 1])
        data += struct.pack("<I", size) + body
    if rng.random() < 0.2:
        data = data[: rng.randint(0, len(data))]
    return data


WRITE = """
import os, zlib
def write(data):
    while data:
        data = data[os.write(3, data):]
"""


def fuzzed_program(number: int) -> tuple[Program, list[Test]]:
    rng = random.Random(f"stream {number}")
    data, more = fuzzed_stream(rng)[:200_000], fuzzed_stream(rng)[:200_000]
    ends = (
        "return x", "return [x]", "raise ValueError(x)", "os._exit(0)", "os.close(3)",
        "write(more)", "while True: write(b'\\0')", "import time; time.sleep(9)",
    )  # fmt: skip
    end = rng.choice(ends)
    early = rng.random() < 0.3
    source = (
        f"{WRITE}more = {more!r}\n{f'write({data!r})' if early else ''}\n"
        f"def f(x):\n    write({data!r})\n    {end}"
    )
    tests: list[Test] = [
        CheckTest(f"for n in range({rng.choice([1, 3, 9, 50])}):\n    assert f(n) == {SECRET} + n"),
        CheckTest(f"assert f(0) == {SECRET}"),
        CallTest((1,), SECRET),
    ]
    return Program(source, "f"), [rng.choice(tests)]


def run_streams(sandbox: Sandbox, numbers: range) -> None:
    programs, tests = zip(*map(fuzzed_program, numbers), strict=True)
    verdicts = sandbox.run_sync(programs, tests, HASTY, on_error="verdict")
    pairs = zip(numbers, verdicts, strict=True)
    blamed = [(number, verdict) for number, verdict in pairs if verdict.status in ("SE", "AC")]
    assert not blamed, ([number for number, _ in blamed], blamed[:3])
    assert len({verdict.status for verdict in verdicts}) >= 3  # they do not all end alike


def test_no_stream_of_a_program_breaks_the_sandbox(sandbox):
    run_streams(sandbox, range(0, STREAMS, 40))


@pytest.mark.full
def test_many_streams_break_nothing(sandbox):
    run_streams(sandbox, range(0, STREAMS, STREAMS // OF_THEM))


NUMBER = Compare("number")


@pytest.mark.parametrize(("definitions", "source", "code", "status"), TABLES["values"])
def test_values_in_a_test_that_is_code(sandbox, definitions, source, code, status):
    source = TABLES["definitions"][definitions] + source
    verdict = judge(sandbox, source, CheckTest(code))
    assert verdict.status == status, verdict.cases


@pytest.mark.parametrize(
    ("body", "expected", "status"),
    [
        *TABLES["returned"],
        ("from collections import namedtuple; return namedtuple('P', 'a')(1)", (1,), "AC"),
    ],
)
def test_values_of_calls(sandbox, body, expected, status):
    verdict = judge(sandbox, f"def f():\n    {body}", CallTest((), expected, {}, NUMBER))
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
    verdict = judge(sandbox, source, StdinTest("", expected))
    assert verdict.status == "AC", verdict.cases


def test_all_tests_of_a_program_have_one_budget(sandbox):
    limits = Limits(cpu_s=0.2, wall_s=300.0, total_s=0.5)
    tests = [StdinTest("", "x")] * 30
    verdict = judge(sandbox, "while True: pass", tests, limits)
    assert (verdict.status, len(verdict.cases), verdict.total) == ("TLE", 30, 30)
    ran = [case for case in verdict.cases if case.cpu_s > 0]
    assert 1 < len(ran) < 10
    assert verdict.cases[-1].detail.startswith("total: ")
    limits = Limits(cpu_s=60.0, wall_s=300.0, total_s=60.0)
    assert judge(sandbox, "print('x')", tests, limits).status == "AC"


SLOW = "import time\ndef f(x):\n    end = time.process_time() + 0.1\n" \
       "    while time.process_time() < end: pass\n    return x"  # fmt: skip


def test_checks_of_a_program_have_one_budget(sandbox):
    limits = Limits(cpu_s=0.3, wall_s=300.0, total_s=0.25)
    tests = [CheckTest(f"assert f({n}) == {n}") for n in range(10)]
    verdict = judge(sandbox, SLOW, tests, limits)
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
    assert judge(sandbox, SLOW, CheckTest(code), limits).status == "AC"
    assert judge(sandbox, SLOW, CheckTest(code.replace("5", "60")), limits).status == "TLE"


@pytest.mark.every_tier
def test_numpy_is_there_if_it_is_asked_for(backend):
    source = "import numpy as np\ndef f(x):\n    return float(np.arange(x).sum())"
    test = CheckTest(
        "import numpy as np\nfor n in range(9):\n    assert np.isclose(f(n), sum(range(n)))"
    )
    with Sandbox(backend, workers=1, packages=["numpy"]) as sandbox:
        verdict = judge(sandbox, source, test)
        assert verdict.status == "AC", verdict.cases
        other = "import numpy.fft, threading\nprint(threading.active_count())\nimport yaml"
        case = judge(sandbox, other, StdinTest("", "1")).cases[0]
        assert (case.status, case.stdout) == ("RE", "1\n")
        assert "No module named 'yaml'" in case.stderr
        assert set(sandbox.describe()["packages"]) == {"numpy"}
    with Sandbox(backend, workers=1) as sandbox:
        case = judge(sandbox, "import numpy", StdinTest("", "")).cases[0]
        assert "No module named 'numpy'" in case.stderr


@pytest.mark.skipif(os.name != "posix", reason="folders of programs under `unsafe`")
def test_a_killed_box_without_isolation_leaves_no_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    source = "open('x', 'w').write('y')\nwhile True: pass"
    with Sandbox("unsafe", workers=1) as sandbox, ThreadPoolExecutor(1) as threads:
        future = threads.submit(judge, sandbox, source, StdinTest("", ""))
        wait_for(lambda: list(tmp_path.rglob("x")))
        sandbox.close_sync()
        with pytest.raises(SandboxError):
            future.result(60)
    assert list(tmp_path.iterdir()) == []
