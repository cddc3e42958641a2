"""Jobs: validated arguments of a call, encoded for the protocol.

An invalid test raises here; the content of a program never raises.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from flowzoo.errors import UsageError
from flowzoo.sandbox.program import CallTest, CheckTest, Limits, Program, StdinTest, Test
from flowzoo.sandbox.runner import codec

# `alone`: the code of a check without a program; see `run._own_failure`.
TestStyle = Literal["stdin", "call", "check", "alone"]

MOST_SOURCE = 4 * 2**20  # bytes of a program; a longer one is a compile error without being run
# Most bytes of one test's input, and approximately of one frame.
MOST_TEST = 16 * 2**20
MOST_OUTPUT = 32 * 2**20  # most bytes of `output_bytes`: an output is sent in one frame

_SURELY_FITS = 1 << 14  # characters of an expected output up to which white space is not counted

_STYLE: dict[type, TestStyle] = {StdinTest: "stdin", CallTest: "call", CheckTest: "check"}


@dataclass(frozen=True, slots=True)
class TestGroup:
    """Consecutive tests of one style in one job; a check is a separate job."""

    style: TestStyle
    tests: tuple[Any, ...]
    blobs: tuple[tuple[bytes, ...], ...]  # input by test


@dataclass(frozen=True, slots=True)
class TestPlan:
    """All tests of a program, in their order."""

    steps: tuple[TestGroup, ...]
    total: int
    entry: str | None
    # Minimum `output_bytes` with which all tests can pass.
    longest: int = 0


@dataclass(frozen=True, slots=True)
class ProgramJob:
    """One program of a batch."""

    row: int  # index among the programs of the call
    program: Program
    plan: TestPlan
    limits: Limits


def make_plans(programs: Sequence[Program], tests: Sequence[Sequence[Test]]) -> list[TestPlan]:
    """Make a plan per program; programs with the same tests object (a group) share a plan."""
    for name, value in (("programs", programs), ("tests", tests)):
        if isinstance(value, str | bytes | Program | Mapping) or not isinstance(value, Sequence):
            raise UsageError(f"`{name}` must be a list, got {type(value).__name__}")
    if len(programs) != len(tests):
        raise UsageError(
            f"expected a list of tests for each program, got {len(programs)} programs and "
            f"{len(tests)} lists of tests"
        )
    plans_by_key: dict[tuple[int, str | None], TestPlan] = {}
    plans = []
    for row, (program, program_tests) in enumerate(zip(programs, tests, strict=True)):
        _check_program(program, row)
        key = id(program_tests), program.entry
        if key not in plans_by_key:
            plans_by_key[key] = _make_plan(program.entry, program_tests, row)
        plans.append(plans_by_key[key])
    return plans


def make_limits(limits: Limits | Sequence[Limits], count: int) -> list[Limits]:
    """Make the limits by program."""
    listed = [limits] * count if isinstance(limits, Limits) else list(limits)
    if len(listed) != count:
        raise UsageError(
            f"limits: expected one for all or one per program, got {len(listed)} for {count}"
        )
    for limit in listed:
        if not isinstance(limit, Limits):
            raise UsageError(f"limits must be of the class Limits, got {type(limit).__name__}")
        if limit.output_bytes > MOST_OUTPUT:
            raise UsageError(f"output_bytes may be at most {MOST_OUTPUT}, got {limit.output_bytes}")
    return listed


def source_bytes(program: Program) -> bytes:
    """Encode the source; text that is not UTF-8 stays invalid and will not compile."""
    return program.source.encode("utf-8", "surrogatepass")


def limits_head(limits: Limits, style: str) -> dict[str, Any]:
    """Limits in the format of a JOB frame."""
    test = {"check": limits.session_s, "lockstep": limits.session_s, "alone": limits.alone_s}
    head = asdict(limits) | {"cpu_s": test.get(style, limits.cpu_s), "wall_s": limits.wall}
    return head | ({"session_s": limits.session_s} if style == "serve" else {})


def digest(program: Program) -> str:
    """Short name of a program in messages and logs."""
    return hashlib.sha256(source_bytes(program)).hexdigest()[:12]


def job_key(program: Program, tests: bytes, limits: Limits, stop: bool) -> bytes:
    """Digest of all inputs of a verdict except the tier; `tests` is their digest."""
    return _sha256(repr((program, tests, limits, stop)))


def digest_tests(tests: Sequence[Test]) -> bytes:
    """Digest of tests from their reprs, which distinguish True, 1 and 1.0."""
    # Equal sets with different iteration orders get different keys: a cache miss, never a wrong
    # hit.
    try:
        return _sha256(repr(tuple(tests)))
    except ValueError:  # an int with more digits than the interpreter converts to text
        return _sha256(repr([_bytes_of(test) for test in tests]))


def _bytes_of(test: Test) -> Any:
    if not isinstance(test, CallTest):
        return test
    return *_blobs("call", test, "the test"), codec.encode(test.expected), test.compare


def _sha256(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _check_program(program: Program, row: int) -> None:
    if not isinstance(program, Program):
        raise UsageError(
            f"programs[{row}] must be a Program, got {type(program).__name__}: "
            "wrap source text as Program(source)"
        )
    if not isinstance(program.source, str):
        raise UsageError(f"programs[{row}].source must be a str, not {type(program.source)}")
    entry = program.entry
    if entry is not None and not all(part.isidentifier() for part in entry.split(".")):
        raise UsageError(
            f"programs[{row}].entry must be the name of a function or `Class.method`, got {entry!r}"
        )


def _make_plan(entry: str | None, tests: Sequence[Test], row: int) -> TestPlan:
    if isinstance(tests, StdinTest | CallTest | CheckTest) or not isinstance(tests, Sequence):
        raise UsageError(f"tests[{row}] must be a list of tests, got {type(tests).__name__}")
    if not tests:
        raise UsageError(f"tests[{row}] is empty: a program without tests cannot be judged")
    steps: list[TestGroup] = []
    group: list[tuple[object, tuple[bytes, ...]]] = []
    size = 0
    for column, test in enumerate(tests):
        style = _style(entry, test, f"tests[{row}][{column}]")
        blobs = _blobs(style, test, f"tests[{row}][{column}]")
        length = sum(map(len, blobs))
        if group and (
            style == "check" or style != _STYLE[type(group[0][0])] or size + length > MOST_TEST
        ):
            steps.append(_step(group))
            group, size = [], 0
        group.append((test, blobs))
        size += length
    steps.append(_step(group))
    longest = max(least_output(test) for test in tests)
    return TestPlan(tuple(steps), len(tests), entry, longest)


def least_output(test: Test) -> int:
    """Minimum bytes of a right output (0 for a check, whose output is unknown)."""
    if isinstance(test, StdinTest):
        size = len(test.expected)
        if size <= _SURELY_FITS or test.compare.mode == "exact":
            return size
        return sum(map(len, test.expected.split()))
    return len(codec.encode(test.expected)) if isinstance(test, CallTest) else 0


def check_test(entry: str | None, test: Test, where: str) -> None:
    """Check that a test can be run."""
    _blobs(_style(entry, test, where), test, where)


def _step(group: list[tuple[Any, tuple[bytes, ...]]]) -> TestGroup:
    tests, blobs = zip(*group, strict=True)
    return TestGroup(_STYLE[type(tests[0])], tests, blobs)


def _style(entry: str | None, test: Test, where: str) -> TestStyle:
    style = _STYLE.get(type(test))
    if style is None:
        raise UsageError(
            f"{where} must be a StdinTest, CallTest or CheckTest, got {type(test).__name__}"
        )
    if (style == "stdin") != (entry is None):
        have = "has none" if entry is None else f"has the entry {entry!r}"
        need = "a program without an entry" if style == "stdin" else "a program with an entry"
        raise UsageError(f"{where} is a {type(test).__name__}, which needs {need}; this one {have}")
    return style


def _blobs(style: TestStyle, test: Any, where: str) -> tuple[bytes, ...]:
    try:
        if style == "stdin":
            test.expected.encode()
            blobs = (test.stdin.encode(),)
        elif style == "call":
            codec.encode(test.expected)
            blobs = (codec.encode((tuple(test.args), dict(test.kwargs))),)
        else:
            blobs = test.setup.encode(), test.code.encode(), test.call.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{where} contains text that is not UTF-8: {error.reason}") from error
    except codec.UnsupportedTypeError as error:
        raise UsageError(
            f"{where} must contain only plain data (None, bool, numbers, str, bytes and lists, "
            "tuples, "
            f"sets and dicts of them), found {error}"
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{where} has a field of a wrong type: {error}") from error
    if sum(map(len, blobs)) > MOST_TEST:
        raise UsageError(
            f"{where} has an input of {sum(map(len, blobs))} bytes; at most {MOST_TEST} are allowed"
        )
    return blobs
