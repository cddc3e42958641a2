"""Programs get the verdict that they get in plain Python, run as the published harnesses do it."""

import subprocess
import sys
from collections.abc import Sequence
from itertools import product

import pytest

from flowzoo.sandbox import CallTest, CheckTest, Limits, Program, Sandbox, StdinTest
from flowzoo.sandbox.program import EXACT
from tests.sandbox.judging import plain_ends
from tests.tables import read_tables

TABLES = read_tables(__file__)
LIMITS = Limits(cpu_s=20.0, wall_s=300.0)
LEAST = 30  # cases of each class

pytestmark = pytest.mark.every_tier


def prints(source: str) -> tuple[int, str]:
    """Exit code and output in plain Python of a program that is a file."""
    command = [sys.executable, "-I", "-S", "-X", "int_max_str_digits=0", "-c", source]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout


def check_all(sandbox: Sandbox, pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Each program passes its test in the sandbox exactly if it does in plain Python."""
    assert len(pairs) >= LEAST
    truth = [end == "passed" for end in plain_ends(pairs)]
    assert len(set(truth)) == 2, "nothing is wrong, or all of it"
    programs = [Program(source, "f") for source, _ in pairs]
    tests = [[CheckTest(test)] for _, test in pairs]
    verdicts = sandbox.run_sync(programs, tests, LIMITS, on_error="verdict")
    other = [
        (pair, verdict.cases)
        for pair, verdict, right in zip(pairs, verdicts, truth, strict=True)
        if (verdict.status == "AC") != right
    ]
    assert not other
    return truth


def check_outputs(sandbox: Sandbox, sources: Sequence[str]) -> None:
    """Each program prints in the sandbox what it prints in plain Python, and ends alike."""
    assert len(sources) >= LEAST
    truth = [prints(source) for source in sources]
    tests = [[StdinTest("", output, EXACT)] for _, output in truth]
    verdicts = sandbox.run_sync([*map(Program, sources)], tests, LIMITS, on_error="verdict")
    other = [
        (source, code, output, verdict.cases)
        for source, (code, output), verdict in zip(sources, truth, verdicts, strict=True)
        if verdict.status != ("RE" if code else "AC")
        or not output.startswith(verdict.cases[0].stdout.rstrip("…"))
    ]
    assert not other
    assert sum(len(output) > 0 for _, output in truth) >= LEAST


def test_a_main_guard_does_not_run(sandbox):
    pairs = [
        (f"{function}\nif __name__ == '__main__':\n    {guard}\n", "assert [f(1), f(5)] == [2, 6]")
        for function, guard in product(TABLES["functions"], TABLES["guards"])
    ]
    truth = check_all(sandbox, pairs)
    tests = [CallTest((1,), 2), CallTest((5,), 6)]
    programs = [Program(source, "f") for source, _ in pairs]
    verdicts = sandbox.run_sync(programs, [tests] * len(pairs), LIMITS, on_error="verdict")
    assert [verdict.status == "AC" for verdict in verdicts] == truth


def test_the_module_that_calls_a_program_has_nothing(sandbox):
    source = "import __main__\nnames = {*vars(__main__)}\ndef f(): return sorted(names)"
    parts = "__builtins__ __doc__ __file__ __loader__ __name__ __package__ __spec__"
    verdict = sandbox.run_sync([Program(source, "f")], [[CallTest((), parts.split())]], LIMITS)[0]
    assert verdict.status == "AC", verdict.cases


def test_a_program_that_prints_is_main(sandbox):
    sources = [
        f"def f(x):\n    return x + {number}\nif __name__ == {name}:\n    print(f(1))\nprint(2)"
        for number, name in product(range(15), ("'__main__'", "'program'"))
    ]
    check_outputs(sandbox, sources)


def test_integers_have_any_number_of_digits(sandbox):
    sources = [
        line.format(digits=digits)
        for line, digits in product(TABLES["digits"], (4300, 4301, 20_000))
    ]
    check_outputs(sandbox, sources)


def test_thread_pools_and_locks_of_multiprocessing_work(sandbox):
    check_outputs(sandbox, TABLES["threads"])


def test_what_is_written_is_there_at_the_end(sandbox):
    check_outputs(
        sandbox, [f"{way}\n{end}" for way, end in product(TABLES["ways"], TABLES["ends"])]
    )


def test_results_may_be_used_that_are_no_plain_data(sandbox):
    pairs = [
        (f"import datetime, array, itertools\ndef f():\n    return {result}", test)
        for result, test in [*product(TABLES["results"], TABLES["uses"])][::3]
    ]
    check_all(sandbox, pairs + [(source, test) for source, test in TABLES["generators"]])
