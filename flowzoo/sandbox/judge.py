"""Conversion of a box's report to a verdict: pure functions on plain data, outside the box."""

import math
import reprlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from flowzoo.sandbox.compare import text_matches, values_match
from flowzoo.sandbox.program import CallTest, Case, Status, StdinTest, Verdict
from flowzoo.sandbox.runner import codec
from flowzoo.sandbox.runner.wire import Frame, FrameError

# | outcome in the box | status |
# |---|---|
# | exited 0 (stdin style), returned (call style) | AC or WA, by comparison |
# | unplain: the returned value is not plain data | WA |
# | exited otherwise, or inside a call; signaled; raised | RE |
# | compile | CE |
# | cpu, wall | TLE, with the clock as the detail |
# | memory | MLE |
# | output | OLE |
# | setup: the box failed before the program started; oom: the machine had no memory | SE |
OutcomeName = Literal[
    "exited", "signaled", "raised", "returned", "unplain", "cpu", "wall", "memory", "output",
    "compile", "setup", "oom",
]  # fmt: skip

SHOWN = 4096  # most characters of an output that a verdict keeps
LINE = 300  # most characters of a detail

# Outcomes that mean an exceeded limit.
LIMIT_STATUS: dict[str, Status] = {"cpu": "TLE", "wall": "TLE", "memory": "MLE", "output": "OLE"}
_SMALL = reprlib.Repr()
_SMALL.maxlevel = 8
_SMALL.maxlist = _SMALL.maxtuple = _SMALL.maxset = _SMALL.maxfrozenset = _SMALL.maxdict = 100
_SMALL.maxstring = _SMALL.maxother = _SMALL.maxlong = 1000


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """Result of one test in the box: the checked fields of a CASE frame."""

    name: OutcomeName
    code: int
    signal: int
    detail: str
    cpu_s: float
    wall_s: float
    memory: int  # bytes resident at the peak
    output: bytes
    stderr: bytes


def read_outcome(frame: Frame) -> CaseOutcome:
    """Read the outcome in a CASE frame."""
    head = frame.head
    name: Any = head.get("outcome")
    if name not in get_args(OutcomeName):
        raise FrameError(f"a case with the outcome {name!r:.50}")
    if len(frame.blobs) != 2:
        raise FrameError(f"a case with {len(frame.blobs)} blobs, not output and stderr")
    return CaseOutcome(
        name=name,
        code=_whole(head, "code"),
        signal=_whole(head, "signal"),
        detail=one_line(str(head.get("detail") or "")),
        cpu_s=read_seconds(head, "cpu_s"),
        wall_s=read_seconds(head, "wall_s"),
        memory=_whole(head, "memory"),
        output=frame.blobs[0],
        stderr=frame.blobs[1],
    )


def judge_stdin(outcome: CaseOutcome, test: StdinTest) -> Case:
    """The case of a program that reads stdin and prints."""
    output = show_text(outcome.output)
    if outcome.name != "exited" or outcome.code:
        return fault(outcome, output)
    matches = text_matches(outcome.output, test.expected, test.compare)
    return _case(outcome, "AC" if matches else "WA", "", output)


def judge_call(outcome: CaseOutcome, test: CallTest) -> Case:
    """The case of one call."""
    if outcome.name != "returned":
        return fault(outcome, "")
    try:
        value = codec.decode(outcome.output)
    except ValueError:
        return _case(outcome, "RE", "what it returned cannot be read", "")
    matches = values_match(value, test.expected, test.compare)
    return _case(outcome, "AC" if matches else "WA", "", show_value(value))


def fault(outcome: CaseOutcome, output: str) -> Case:
    """The case of a failed outcome, which needs no comparison."""
    name, detail = outcome.name, outcome.detail
    if name in LIMIT_STATUS:
        return _case(outcome, LIMIT_STATUS[name], name, output)
    if name == "unplain":
        return _case(outcome, "WA", f"returned {detail or 'an object'}, which is no plain data", "")
    if name == "compile":
        return _case(outcome, "CE", detail or last_line(outcome.stderr), output)
    if name in ("setup", "oom"):
        return _case(outcome, "SE", detail or "the box failed before the program started", output)
    if name == "raised":
        return _case(outcome, "RE", detail or last_line(outcome.stderr), output)
    if name == "signaled":
        return _case(outcome, "RE", f"signal {outcome.signal}", output)
    message = last_line(outcome.stderr)
    return _case(
        outcome, "RE", f"exit code {outcome.code}" + (f": {message}" if message else ""), output
    )


def judge_server(server: CaseOutcome) -> Case:
    """The case of a check whose program ended before it was stopped."""
    if server.name in ("exited", "returned"):
        return _case(server, "RE", f"exit code {server.code} before the test was over", "")
    return fault(server, "")


def judge_checker(checker: CaseOutcome, raised: Collection[str], answered: bool) -> Case:
    """The case of a check whose test code ended while the program was serving."""
    # After an answer the end of the test's code may be caused by the answer (e.g. by `eval`) and is
    # never a sandbox failure; before, it cannot be caused by the program.
    if checker.name == "returned":
        return _case(checker, "AC", "", "")
    detail = checker.detail or last_line(checker.stderr)
    kind = detail.split(":")[0].strip()
    if checker.name == "raised" and kind != "AssertionError" and kind in raised:
        return _case(checker, "RE", detail, "")
    own_fault = checker.name != "raised" or kind in ("ModuleNotFoundError", "SyntaxError")
    if own_fault and not answered:
        return own_failure(checker, detail)
    if checker.name in LIMIT_STATUS:
        return _case(checker, LIMIT_STATUS[checker.name], f"{checker.name}, in the test's code", "")
    if checker.name == "raised":
        return _case(checker, "WA", detail, "")
    signal = f" {checker.signal}" if checker.name == "signaled" else ""
    return _case(checker, "WA", f"the test's code {checker.name}{signal} upon an answer", "")


def own_failure(checker: CaseOutcome, detail: str) -> Case:
    """The case of a check whose test itself fails for every program."""
    if checker.name in LIMIT_STATUS:
        detail = f"of {checker.cpu_s:.1f} CPU seconds" if checker.name == "cpu" else ""
        detail = f"it does not end before it meets a limit ({checker.name}) {detail}".rstrip()
    else:
        detail = f"{checker.name} {detail}".strip()
    return _case(checker, "SE", f"the test's own code failed: {detail}", "")


def settle(
    cases: Sequence[Case], total: int, tier: str, stop: bool, facts: dict[str, Any]
) -> Verdict:
    """The verdict of a program; under `stop` only cases up to the first failure count."""
    first = next((row for row, case in enumerate(cases) if case.status != "AC"), None)
    status: Status = "AC" if first is None else cases[first].status
    if any(case.status == "SE" for case in cases):
        status = "SE"
    judged = cases[: first + 1] if stop and first is not None else cases
    return Verdict(status, tuple(judged), total, tier, facts)


def show_text(output: bytes) -> str:
    """The start of an output for display; bytes that are not UTF-8 become U+FFFD."""
    text = output[: 4 * SHOWN].decode("utf-8", "replace")
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def show_value(value: object) -> str:
    """Bounded repr of plain data; a note for ints with too many digits."""
    try:
        text = _SMALL.repr(value)
    except ValueError:  # an int above the interpreter's limit of digits
        text = f"<{type(value).__name__} with an int of more than 4,300 digits>"
    return text if len(text) <= SHOWN else text[:SHOWN] + "…"


def last_line(stderr: bytes) -> str:
    """The last nonblank line."""
    lines = [line for line in stderr.decode("utf-8", "replace").splitlines() if line.strip()]
    return one_line(lines[-1]) if lines else ""


def one_line(text: str) -> str:
    """`text` as one short line without control characters, for logs and terminals."""
    flat = " ".join(text[: 4 * LINE].split())
    return "".join(char if char.isprintable() else "?" for char in flat)[:LINE]


def _case(outcome: CaseOutcome, status: Status, detail: str, output: str) -> Case:
    return Case(
        status=status,
        detail=detail,
        stdout=output,
        stderr=outcome.stderr.decode("utf-8", "replace"),
        wall_s=outcome.wall_s,
        cpu_s=outcome.cpu_s,
        memory_mb=outcome.memory / 2**20,
    )


def _whole(head: dict[str, Any], name: str) -> int:
    return _number(head, name, lambda value: type(value) is int)


def read_seconds(head: dict[str, Any], name: str) -> float:
    """Read a time in the head of a frame; 0 if it has none."""
    return float(
        _number(head, name, lambda value: type(value) in (int, float) and 0 <= value < math.inf)
    )


def _number(head: dict[str, Any], name: str, fits: Callable[[Any], bool]) -> Any:
    value = head.get(name)
    if value is None:
        return 0
    if not fits(value):
        raise FrameError(f"a case with {name} = {value!r:.50}")
    return value
