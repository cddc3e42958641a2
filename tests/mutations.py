"""Proves that the tests catch faults: makes one mistake at a time in a copy and runs tests on it.

    python tests/mutations.py [--list] [--only WORD] [--jobs N] [--timeout S]

Run by hand, in the environment of the tests; pytest does not collect this file. Every mutation
names the tests that have to fail with it. They must pass without it, which is checked first: tests
that fail, do not run or are only skipped make their mutations `BROKEN`. A mutation whose tests
pass has `SURVIVED`, and the exit status is 1. Tests that need a Docker engine, a browser, vLLM or
the data sets in `../shared` find them as they do in the checkout.
"""

import argparse
import ast
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutations.toml")
"""The mutations: of every room, and of what only runs of whole parts can show."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake: `old`, which stands exactly once in `file`, becomes `new`.

    `tests` are arguments of pytest: what has to fail then.
    """

    fault: str
    file: str
    old: str
    new: str
    tests: str

    @property
    def title(self) -> str:
        """File and fault."""
        return f"{self.file}: {self.fault}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run of tests came to; `code` None: the time was up."""

    code: int | None
    ran: int
    failed: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutation."""

    mutation: Mutation
    verdict: str
    note: str
    seconds: float


def mutated(mutation: Mutation, text: str) -> str:
    """`text` of the mutation's file with the fault in it.

    Raises:
        ValueError: the old text does not stand there exactly once, or the result is no Python.
    """
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.title}: the old text stands {count} times in the file")
    matches = text.replace(mutation.old, mutation.new)
    if mutation.file.endswith(".py"):
        try:
            ast.parse(matches)
        except SyntaxError as error:
            raise ValueError(f"{mutation.title}: {error}") from error
    return matches


def copy_tree(folder: Path) -> Path:
    """A copy of the checkout below `folder`, beside it `shared` if there is one."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    tree = folder / "tree"
    for name in filter(None, listed.split("\0")):
        if os.path.lexists(ROOT / name):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    if (ROOT.parent / "shared").is_dir():
        (folder / "shared").symlink_to(ROOT.parent / "shared")
    (folder / "tmp").mkdir()
    for path, mode in ((folder.parent, 0o755), (folder, 0o755), (folder / "tmp", 0o1777)):
        path.chmod(mode)  # boxes of other users read the runner in it
    return tree


def run_tests(tree: Path, tests: str, limit: float) -> Outcome:
    """Run pytest in the copy; whatever it started is ended afterwards."""
    scratch = tree.parent / "tmp"
    report = scratch / "report.xml"
    report.unlink(missing_ok=True)
    args = ["-x", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    args += [f"--basetemp={scratch / 'base'}", *shlex.split(tests)]
    path = os.pathsep.join(filter(None, (str(tree), os.environ.get("PYTHONPATH"))))
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, "TMPDIR": str(scratch)}
    began = time.monotonic()
    with (scratch / "said.txt").open("wb") as message:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *args], cwd=tree, env=environment, stdout=message,
            stderr=message, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_rest(scratch)
    ran, failed = read_report(report)
    return Outcome(code, ran, failed, time.monotonic() - began)


def end_rest(scratch: Path) -> None:
    """Kill what the tests left running: all processes whose temporary folder is `scratch`."""
    mark = f"TMPDIR={scratch}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


def read_report(report: Path) -> tuple[int, str]:
    """How many tests ran, skipped ones not counted, and the first that failed."""
    if not report.exists():
        return 0, ""
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [item for item in cases for part in ("failure", "error") if item.find(part) is not None]
    failed = f"{bad[0].get('classname')}.{bad[0].get('name')}" if bad else ""
    return sum(case.find("skipped") is None for case in cases), failed


def broken_clean(outcome: Outcome) -> str:
    """Why tests of the unchanged copy say nothing; empty: they pass."""
    if outcome.code is None:
        return "without it the tests take too long"
    if outcome.code:
        return f"without it the tests fail: {outcome.failed or f'status {outcome.code}'}"
    return "" if outcome.ran else "the tests are only skipped"


def judge(mutation: Mutation, outcome: Outcome) -> Result:
    """The verdict on a mutation."""
    verdict, note = "BROKEN", f"pytest ended with status {outcome.code}: {outcome.failed}"
    if outcome.code is None:
        verdict, note = "caught", "time-out"
    elif outcome.code == 1 or outcome.code < 0:
        verdict, note = "caught", outcome.failed or f"signal {-outcome.code}"
    elif outcome.code == 0:
        verdict, note = "SURVIVED", f"{outcome.ran} tests pass"
    return Result(mutation, verdict, note, outcome.seconds)


def try_group(tree: Path, group: Sequence[Mutation], limit: float, clean: bool) -> Iterator[Result]:
    """The results of mutations that have the same tests."""
    if clean:
        outcome = run_tests(tree, group[0].tests, limit)
        why = broken_clean(outcome)
        tell(f"{'BROKEN' if why else 'clean':8} {outcome.seconds:6.1f} s  {group[0].tests}")
        if why:
            yield from (Result(mutation, "BROKEN", why, 0.0) for mutation in group)
            return
    for mutation in group:
        path = tree / mutation.file
        before, text = path.stat(), path.read_text(encoding="utf-8")
        try:
            path.write_text(mutated(mutation, text), encoding="utf-8")
            yield judge(mutation, run_tests(tree, mutation.tests, limit))
        finally:
            path.write_text(text, encoding="utf-8")
            # What was compiled of the mutated file has another time, and is not taken again.
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def try_all(chosen: Sequence[Mutation], jobs: int, limit: float, clean: bool) -> list[Result]:
    """The results of all mutations, told as they come."""
    groups: dict[str, list[Mutation]] = {}
    for mutation in chosen:
        groups.setdefault(mutation.tests, []).append(mutation)
    matches: list[Result] = []
    trees: SimpleQueue[Path] = SimpleQueue()

    def work(group: Sequence[Mutation]) -> None:
        tree = trees.get()
        try:
            for item in try_group(tree, group, limit, clean):
                tell(
                    f"{item.verdict:8} {item.seconds:6.1f} s  {item.mutation.title}  [{item.note}]"
                )
                matches.append(item)
        finally:
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="flowzoo-mutations-") as folder:
        for number in range(jobs):
            trees.put(copy_tree(Path(folder) / str(number)))
        with ThreadPoolExecutor(jobs) as threads:
            list(threads.map(work, groups.values()))
    return matches


def tell(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)  # noqa: T201


def tell_table(matches: Sequence[Result]) -> None:
    """Verdicts per room, and how many mutations were caught."""
    rooms = Counter((item.mutation.file.split("/")[1], item.verdict) for item in matches)
    tell(f"\n{'room':12} caught  SURVIVED  BROKEN")
    for room in sorted({name for name, _ in rooms}):
        counts = [rooms[room, verdict] for verdict in ("caught", "SURVIVED", "BROKEN")]
        tell(f"{room:12} {counts[0]:6}  {counts[1]:8}  {counts[2]:6}")
    caught = sum(item.verdict == "caught" for item in matches)
    tell(f"\n{caught} of {len(matches)} caught")


def main() -> int:
    """Read the command line, try the mutations, print what became of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", default="", help="mutations whose file, text or tests hold this")
    parser.add_argument("--list", action="store_true", help="print the mutations and end")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for a run of tests")
    parser.add_argument("--no-clean-run", action="store_true", help="trust the unchanged tests")
    options = parser.parse_args()
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))["mutations"]
    every = [Mutation(**item) for item in listed]
    chosen = [item for item in every if options.only in "\n".join(asdict(item).values())]
    for mutation in chosen:
        mutated(mutation, (ROOT / mutation.file).read_text(encoding="utf-8"))
        if options.list:
            tell(f"{mutation.title}  [{mutation.tests}]")
    if options.list:
        return 0
    matches = try_all(chosen, options.jobs, options.timeout, not options.no_clean_run)
    tell_table(matches)
    return int(not matches or any(item.verdict != "caught" for item in matches))


if __name__ == "__main__":
    sys.exit(main())
