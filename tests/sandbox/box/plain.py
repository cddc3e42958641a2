"""Programs run by plain Python as the published harnesses run them: the truth of the tests."""

import json
import subprocess
import sys
from collections.abc import Sequence

# Solution and test in one module, which is not `__main__`, and a process for each.
HARNESS = """
import json, os, resource, signal, sys, types
sys.set_int_max_str_digits(0)
answers = []
for source, test in json.load(sys.stdin):
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(0, 1)
        os.dup2(0, 2)
        signal.setitimer(signal.ITIMER_PROF, 10)
        signal.setitimer(signal.ITIMER_REAL, 300)
        resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
        module = sys.modules["solution"] = types.ModuleType("solution")
        try:
            exec(compile(source, "solution", "exec"), vars(module))
            exec(compile(test, "test", "exec"), vars(module))
        except BaseException:
            os._exit(1)
        os._exit(0)
    answers.append(os.waitpid(pid, 0)[1] == 0)
print(json.dumps(answers))
"""


def passes(pairs: Sequence[tuple[str, str]]) -> list[bool]:
    """Whether each solution passes its test, in the same process."""
    command = [sys.executable, "-I", "-S", "-c", HARNESS]
    done = subprocess.run(
        command, input=json.dumps(list(pairs)), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def prints(source: str) -> tuple[int, str]:
    """Exit code and output of a program that is a file."""
    command = [sys.executable, "-I", "-S", "-X", "int_max_str_digits=0", "-c", source]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=300
    )
    return done.returncode, done.stdout
