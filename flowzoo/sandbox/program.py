"""Programs, tests, limits and verdicts: what goes into the sandbox and what comes back.

Expected values never enter a box: comparison happens outside, on plain data of exact types.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from flowzoo.errors import UsageError, check_choice
from flowzoo.sandbox.runner.wire import WALL_PER_CPU

# Accepted, wrong answer, runtime error, time, memory or output limit exceeded, compile error,
# sandbox error. `SE` is never the program's fault and never a score.
Status = Literal["AC", "WA", "RE", "TLE", "MLE", "OLE", "CE", "SE"]

CALLS_PER_CHECK = 10  # slow calls that a check has time for: a thousand fast ones take less

Mode = Literal["exact", "tokens", "number"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each run of a program.

    Raises:
        UsageError: a number out of range.
    """

    cpu_s: float = 2.0
    """CPU seconds: the main clock, since it does not depend on how busy the machine is. Of a check
    each call has as much, and all together (and the test's own code) `CALLS_PER_CHECK` times it."""
    wall_s: float | None = None
    """Seconds on the wall; None: 4 * cpu_s + 1. Seconds for which a program waits for a processor
    do not count, and for each CPU second that it has used it may take sixteen more, so that a busy
    machine does not stop a program that works."""
    total_s: float | None = None
    """CPU seconds for all tests of a program together; tests that are left then are not run, and
    have the verdict TLE. None: no limit."""
    memory_mb: int = 256
    """Memory of the program."""
    output_bytes: int = 65_536
    """Bytes it may print (or return, encoded); more is an output limit verdict."""
    files_mb: int = 16
    """Size of its private /tmp."""
    threads: int = 32
    """Threads it may have; it may not fork at all."""

    def __post_init__(self) -> None:
        for name in ("cpu_s", "wall_s", "total_s"):
            value = getattr(self, name)
            if name != "cpu_s" and value is None:
                continue
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise UsageError(f"`{name}` must be a number greater than 0, got {value!r}.")
        for name, least in (("memory_mb", 1), ("output_bytes", 1), ("threads", 1), ("files_mb", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise UsageError(f"`{name}` must be a whole number from {least}, got {value!r}.")

    @property
    def wall(self) -> float:
        """Seconds on the wall, filled in."""
        return 4 * self.cpu_s + 1 if self.wall_s is None else self.wall_s

    @property
    def session_s(self) -> float:
        """CPU seconds for all calls of a check."""
        whole = CALLS_PER_CHECK * self.cpu_s
        return whole if self.total_s is None else max(self.cpu_s, min(whole, self.total_s))

    @property
    def alone_s(self) -> float:
        """CPU seconds in which the code of a test must end without a program; see `box.run`."""
        return max(self.cpu_s, self.session_s / 2)

    @property
    def patience(self) -> float:
        """Seconds on the wall by which a program has been stopped that waited for no processor."""
        return self.wall + WALL_PER_CPU * self.cpu_s

    @property
    def session_patience(self) -> float:
        """The same for a half of a check."""
        return self.wall + WALL_PER_CPU * self.session_s


@dataclass(frozen=True, slots=True)
class Compare:
    """Rule by which an output is compared with the expected one.

    `exact`: equal text (stdin style), equal values of equal types (call style). `tokens`: equal
    after splitting at white space. `number`: as tokens, but tokens that are both numbers (call
    style: numbers of which one is a float) may differ by `absolute` or, relative to the expected
    one, by `relative`; two whole numbers must be equal however they are spelled.
    """

    mode: Mode = "tokens"
    absolute: float = 1e-6
    relative: float = 1e-6
    tuples_as_lists: bool = False
    """Call style: a tuple equals a list of equal items; for tests that went through JSON."""

    def __post_init__(self) -> None:
        check_choice("compare mode", self.mode, Mode)
        for name in ("absolute", "relative"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"`{name}` must be at least 0, got {getattr(self, name)!r}")


TOKENS, EXACT = Compare("tokens"), Compare("exact")


@dataclass(frozen=True, slots=True)
class Program:
    """Untrusted Python source.

    `entry` is None for a program that reads stdin and prints, else what its call tests call: the
    name of a function, or `Class.method` (an instance is made without arguments).
    """

    source: str
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class StdinTest:
    """Run the program with `stdin`; what it prints must compare equal to `expected`."""

    stdin: str
    expected: str
    compare: Compare = TOKENS


@dataclass(frozen=True, slots=True)
class CallTest:
    """Call the entry; what it returns must compare equal to `expected`.

    Arguments and expected value are plain data: None, bool, int, float, complex, str, bytes, and
    lists, tuples, sets, frozensets and dicts of them. Types count: a tuple is no list, True is
    not 1; only a Counter, OrderedDict or defaultdict that is returned counts as a dict.
    """

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    compare: Compare = EXACT


@dataclass(frozen=True, slots=True)
class CheckTest:
    """Test code that is run in a second box and calls the program's entry through the host.

    `code` is executed in a namespace in which `candidate` and the entry's own name are the entry;
    then `call` is executed (HumanEval: `check(candidate)`; MBPP: nothing, the asserts are in
    `code`). `setup` is executed first, before the entry's name is bound: helpers that the test
    code expects. An AssertionError means WA. The program never sees any of this text.
    """

    code: str
    call: str = ""
    setup: str = ""


Test = StdinTest | CallTest | CheckTest


@dataclass(frozen=True, slots=True)
class Case:
    """Result of one test."""

    status: Status
    detail: str = ""
    """One line: `exit code 1`, `signal 9`, `cpu`, `wall`, the exception's last line …"""
    stdout: str = ""
    """Printed text (stdin style) or repr of the returned value (call style), truncated."""
    stderr: str = ""
    """The end of what was printed to stderr."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    """Peak resident memory."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a program: the cases of its tests in order, up to the last one that ran."""

    status: Status
    """AC if every test passed, else that of the first failing case."""
    cases: tuple[Case, ...]
    total: int
    """Number of tests, run or not."""
    tier: str = ""
    """The isolation it ran under; see `flowzoo.sandbox.BACKENDS`."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """Number of tests passed."""
        return sum(case.status == "AC" for case in self.cases)

    @property
    def fraction(self) -> float:
        """Share of all tests that passed."""
        return self.passed / self.total if self.total else 0.0


# Packages that programs may import besides the standard library, by name, never implied. A box
# imports them, with one thread each, before it sees a program, so that a fork has them. They start
# no threads and read no files after their import.
PACKAGES = ("numpy",)


def package_names(text: str) -> tuple[str, ...]:
    """The names in a text such as `numpy`, separated by commas, in order."""
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def check_packages(text: str | Iterable[str]) -> tuple[str, ...]:
    """The names, each of which is known and installed here."""
    names = package_names(text) if isinstance(text, str) else tuple(sorted(set(text)))
    for name in names:
        check_choice("package of the sandbox", name, PACKAGES)
    package_folders(names)
    return names


def package_folders(names: Iterable[str]) -> list[Path]:
    """The folders of installed packages: their modules, and the libraries that lie beside them."""
    folders = []
    for name in names:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise UsageError(
                f"the package {name} is not installed here, so no sandbox can have it: "
                f"pip install {name}"
            )
        home = Path(places[0]).resolve()
        folders += [path for path in (home, home.with_name(f"{name}.libs")) if path.is_dir()]
    return folders


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Name -> version of installed packages."""
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "unknown"
    return versions


def package_remedy(missing: Collection[str]) -> str:
    """Advice for tests that need these modules."""
    names = ",".join(sorted(set(missing) & set(PACKAGES)))
    if not names:
        return f"A sandbox can have {', '.join(PACKAGES)}, and nothing else."
    return (
        f"Give it to programs and tests with --options packages={names} (an image of your own: "
        f"flowzoo sandbox build --with {names})."
    )
