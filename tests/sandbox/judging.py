"""Verdicts on programs: of a sandbox, and of plain Python, which is the truth of the tests."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from flowzoo.sandbox import Limits, Program, Sandbox, StdinTest, Test, Verdict

# For programs that end by themselves, however the machine stalls.
PATIENT = Limits(cpu_s=60.0, wall_s=300.0)
# As the published harnesses do it: solution and test in one module, which is not `__main__`, and a
# process for each.
HARNESS = """
import json, os, resource, signal, sys, types
sys.set_int_max_str_digits(0)
ends = []
for source, test in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(0, 2)
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))  # CPU time: no stall changes it
        signal.setitimer(signal.ITIMER_REAL, 300)
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        module = sys.modules["solution"] = types.ModuleType("solution")
        try:
            exec(compile(source, "solution", "exec"), vars(module))
            exec(compile(test, "test", "exec"), vars(module))
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    ends.append({0: "passed", 256: "raised"}.get(status, "killed"))
print(json.dumps(ends))
"""


def judge(
    sandbox: Sandbox, source: str, tests: Test | Sequence[Test], limits: Limits = PATIENT,
    stop: bool = False, entry: str = "f",
) -> Verdict:  # fmt: skip
    """Verdict on a program; `entry` is what tests call that do call something."""
    listed = tests if isinstance(tests, Sequence) else [tests]
    program = Program(source, None if isinstance(listed[0], StdinTest) else entry)
    return sandbox.run_sync([program], [listed], limits, stop, on_error="verdict")[0]


def plain_ends(pairs: Sequence[tuple[str, str]], seconds: float = 10) -> list[str]:
    """How each solution with its test ends in one process of plain Python."""
    command = [sys.executable, "-I", "-S", "-c", HARNESS, str(seconds)]
    done = subprocess.run(
        command, input=json.dumps(list(pairs)), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def children(pid: int) -> list[int]:
    """Process ids of the children."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def leaves(pid: int) -> list[int]:
    """Processes below this one that have no children."""
    return [leaf for child in children(pid) for leaf in leaves(child) or [child]]


def ticks(pid: int) -> int:
    """CPU time of a process, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def looping(box: int) -> list[int]:
    """Programs of a box that have used so much CPU time that they must loop."""
    with contextlib.suppress(OSError):
        return [pid for pid in leaves(box) if ticks(pid) > 10]
    return []
