"""Mutants of published reference solutions: flowzoo's verdict next to the data sets' own.

    python -m benchmarks.grading.mutants --data FOLDER [--limit N] [--sandbox NAME] [--json FILE]

FOLDER has HumanEval, HumanEval+ and sanitized MBPP; MBPP+ is MBPP with a column `test` as in that
set, which repeats the asserts in a loop. Each program runs twice: in the sandbox as the task `code`
runs it, and as the sets' harnesses do, in a process that executes solution and test in one
namespace and calls `check`. Reference solutions come first; mutants have three seconds and three
times the reference's time in the harness. Exit status 1 if a reference is judged unlike in the
harness, or fewer than 99.8 % of the verdicts on mutants are equal.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.grading.mutations import mutants
from flowzoo.envs.tasks.code.layouts import with_prelude
from flowzoo.envs.tasks.code.task import CodeTask, grading_tests
from flowzoo.sandbox.program import Program
from flowzoo.sandbox.sandbox import Sandbox

LEAST_AGREEMENT = 0.998
CALL_S = 5.0
"""CPU seconds of a mutant in the sandbox, unless its reference is slow."""
REFERENCE_S, LEAST_S, TIMES = 60.0, 3.0, 3.0
"""CPU seconds of a reference; of a mutant in the harness at least, and per its reference's."""
SETS = {
    "HumanEval": ("humaneval/HumanEval.jsonl", 700),
    "MBPP": ("mbpp/sanitized-mbpp.json", 900),
    "MBPP+": ("mbpp/sanitized-mbpp.json", 400),
    "HumanEval+": ("humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz", 200),
}
"""File of a set, and the number of its mutants."""
PER_PROBLEM = 5

HARNESS = """
import json, os, resource, signal, sys
for line in sys.stdin:
    source, test, seconds = json.loads(line)
    pid = os.fork()
    if pid == 0:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        signal.alarm(600)
        names = {}
        try:
            exec(source, names)
            exec(test, names)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status, usage = os.wait4(pid, 0)
    print(json.dumps([status == 0, usage.ru_utime + usage.ru_stime]), flush=True)
"""


class Trial(NamedTuple):
    """A program of one problem, and what the harness executes after it within so many seconds."""

    number: int
    source: str
    test: str
    seconds: float


class Judged(NamedTuple):
    """A program with its status in the sandbox, and what the harness found."""

    trial: Trial
    status: str
    passed: bool
    cpu_s: float

    @property
    def agrees(self) -> bool:
        """True if both accept the program, or none does."""
        return (self.status == "AC") == self.passed


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file, as published."""
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.splitlines()]


def with_whole_test(record: dict[str, Any]) -> dict[str, Any]:
    """A record of MBPP with the column that MBPP+ adds: all asserts under a loop."""
    lines = [*record["test_imports"], "for _ in range(3):"]
    lines += [f"    {line}" for test in record["test_list"] for line in test.splitlines()]
    return {**record, "test": "\n".join(lines)}


def harness_test(record: dict[str, Any]) -> str:
    """The code that the set's harness executes after the solution."""
    if "entry_point" in record:
        return f"{record['test']}\ncheck({record['entry_point']})\n"
    return "\n".join([*record["test_imports"], *record["test_list"], record.get("test", "")])


def given_lines(record: dict[str, Any]) -> int:
    """Number of lines of a reference that are no solution: the prompt of HumanEval."""
    return record["prompt"].count("\n") if "entry_point" in record else 0


def make_reference(number: int, record: dict[str, Any]) -> Trial:
    """The whole reference solution of a record."""
    source = record.get("code") or record["prompt"] + record["canonical_solution"]
    return Trial(number, source, harness_test(record), REFERENCE_S)


def judge_by_harness(trials: Sequence[Trial]) -> list[tuple[bool, float]]:
    """Run each program and its test in one namespace, in a process of its own."""
    rows = [(trial.source, trial.test, trial.seconds) for trial in trials]
    done = subprocess.run(
        [sys.executable, "-I", "-c", HARNESS],
        input="".join(f"{json.dumps(row)}\n" for row in rows),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def judge(task: CodeTask, box: Sandbox, trials: Sequence[Trial]) -> list[Judged]:
    """Judge programs by the tests of the task in the sandbox, and by the harness."""
    problems = [task.problem(trial.number, "all") for trial in trials]
    verdicts = box.run_sync(
        [
            Program(with_prelude(trial.source, problem.meta["prelude"]), problem.meta["entry"])
            for trial, problem in zip(trials, problems, strict=True)
        ],
        [grading_tests(problem) for problem in problems],
        task.limits(),
        stop=True,
        on_error="verdict",
    )
    found = zip(trials, verdicts, judge_by_harness(trials), strict=True)
    return [Judged(trial, verdict.status, *answer) for trial, verdict, answer in found]


def measure(name: str, folder: Path, limit: int | None, box: Sandbox) -> list[Judged]:
    """Judge the references of a set, then their mutants."""
    file, count = SETS[name]
    records = read_records(folder / file)
    if name == "MBPP+":
        records = [with_whole_test(record) for record in records]
    rng = random.Random(f"mutants of {name}")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "data.jsonl"
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))

        def judged(trials: Sequence[Trial], seconds: float) -> list[Judged]:
            task = CodeTask(data=str(path), packages="numpy", cpu_s=seconds, sandbox=box.backend)
            return judge(task, box, trials)

        references = judged([*starmap(make_reference, enumerate(records))], REFERENCE_S)
        trials = [
            row.trial._replace(source=source, seconds=LEAST_S + TIMES * row.cpu_s)
            for row in references
            for source in mutants(
                row.trial.source, PER_PROBLEM, rng, given_lines(records[row.trial.number])
            )
        ]
        rng.shuffle(trials)
        trials = trials[: limit or count]
        # A reference that takes seconds leaves its mutants as much time here as in the harness.
        slow = [trial for trial in trials if trial.seconds > CALL_S]
        fast = [trial for trial in trials if trial.seconds <= CALL_S]
        longest = max((trial.seconds for trial in slow), default=CALL_S)
        return references + judged(fast, CALL_S) + judged(slow, longest)


def summarize(name: str, rows: Sequence[Judged]) -> dict[str, Any]:
    """Numbers of a set's row in the table."""
    references = [row for row in rows if row.trial.seconds == REFERENCE_S]
    changed = [row for row in rows if row.trial.seconds != REFERENCE_S]
    return {
        "set": name,
        "references": len(references),
        "references accepted": sum(row.status == "AC" for row in references),
        "references accepted by the harness": sum(row.passed for row in references),
        "references unlike": sum(not row.agrees for row in references),
        "mutants": len(changed),
        "mutants accepted": sum(row.status == "AC" for row in changed),
        "mutants accepted by the harness": sum(row.passed for row in changed),
        "equal": sum(row.agrees for row in changed),
        "statuses": dict(sorted(Counter(row.status for row in changed).items())),
    }


COLUMNS = [
    "set", "references accepted (by `check`)", "mutants", "accepted (by `check`)", "equal verdicts",
]  # fmt: skip


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the page's table."""
    ours, theirs = row["references accepted"], row["references accepted by the harness"]
    accepted, passed = row["mutants accepted"], row["mutants accepted by the harness"]
    return [
        row["set"], f"{ours} of {row['references']} ({theirs})", str(row["mutants"]),
        f"{accepted} ({passed})", str(row["equal"]),
    ]  # fmt: skip


def describe(name: str, row: Judged) -> dict[str, Any]:
    """A program on which the verdicts differ."""
    return {
        "set": name, "row": row.trial.number, "status": row.status, "harness": row.passed,
        "harness_cpu_s": row.cpu_s, "source": row.trial.source,
    }  # fmt: skip


def main() -> int:
    """Measure, print a table, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--limit", type=int, help="mutants of each set")
    parser.add_argument("--sandbox", default="auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    table, differences = [], []
    start = time.monotonic()
    with Sandbox(args.sandbox, workers=args.workers, packages=["numpy"]) as box:
        tier = box.tier
        for name in SETS:
            rows = measure(name, args.data, args.limit, box)
            table.append(summarize(name, rows))
            print(json.dumps(table[-1]), flush=True)
            differences += [describe(name, row) for row in rows if not row.agrees]
    for other in differences:
        print(json.dumps(other))
    equal, total = sum(row["equal"] for row in table), sum(row["mutants"] for row in table)
    print(f"{equal} of {total} verdicts on mutants are equal, tier {tier}")
    if args.json:
        facts = {
            "command": f"python -m benchmarks.grading.mutants --data FOLDER --sandbox {tier}",
            "seconds": round(time.monotonic() - start), "columns": COLUMNS,
            "align": "|---|--:|--:|--:|--:|", "rows": [*map(cells, table)], "sets": table,
            "differences": [{**row, "source": "not ours to keep"} for row in differences],
        }  # fmt: skip
        args.json.write_text(json.dumps(facts, indent=1) + "\n")
    return int(equal < LEAST_AGREEMENT * total or any(row["references unlike"] for row in table))


if __name__ == "__main__":
    sys.exit(main())
