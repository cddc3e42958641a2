"""Programs, tests, limits and verdicts: inputs and outputs of the sandbox.

Expected values never enter a box: comparison happens outside, on plain data of exact types.
"""

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

CALLS_PER_CHECK = 10  # number of slow calls that a check has time for

Mode = Literal["exact", "tokens", "number"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of each run of a program.

    Raises:
        UsageError: a number out of range.
    """

    cpu_s: float = 2.0
    """CPU seconds, the main limit, since they do not depend on the machine's load. In a check the
    limit holds per call; all calls together (and the test's own code) have `CALLS_PER_CHECK` times
    it."""
    wall_s: float | None = None
    """Wall-clock seconds; None: 4 * cpu_s + 1. Time spent waiting for a processor does not count,
    and each used CPU second adds sixteen more, so load on the machine does not stop a running
    program."""
    total_s: float | None = None
    """CPU seconds for all tests of a program together; the remaining tests are then not run and get
    the verdict TLE. None: no limit."""
    memory_mb: int = 256
    """Memory of the program in MB."""
    output_bytes: int = 65_536
    """Most bytes of output (or of an encoded result); more is the verdict OLE."""
    files_mb: int = 16
    """Size of its private /tmp."""
    threads: int = 32
    """Most threads of the program; it cannot fork."""

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
                raise UsageError(
                    f"`{name}` must be a whole number of at least {least}, got {value!r}."
                )

    @property
    def wall(self) -> float:
        """Wall-clock seconds, with the default resolved."""
        return 4 * self.cpu_s + 1 if self.wall_s is None else self.wall_s

    @property
    def session_s(self) -> float:
        """CPU seconds for all calls of a check."""
        whole = CALLS_PER_CHECK * self.cpu_s
        return whole if self.total_s is None else max(self.cpu_s, min(whole, self.total_s))

    @property
    def alone_s(self) -> float:
        """CPU seconds for the code of a test without a program; see `box.run`."""
        return max(self.cpu_s, self.session_s / 2)

    @property
    def patience(self) -> float:
        """Wall-clock seconds after which a program has been stopped if it never waited to run."""
        return self.wall + WALL_PER_CPU * self.cpu_s

    @property
    def session_patience(self) -> float:
        """`patience` for a half of a check."""
        return self.wall + WALL_PER_CPU * self.session_s


@dataclass(frozen=True, slots=True)
class Compare:
    """Rule by which an output is compared with the expected one.

    `exact`: equal text (stdin style), equal values of equal types (call style). `tokens`: equal
    after splitting at white space. `number`: as tokens, but two numbers (call style: at least one
    of them a float) may differ by `absolute` or, relative to the expected one, by `relative`; two
    integers must be equal in any spelling, and a text with a leading zero is no number.
    """

    mode: Mode = "tokens"
    absolute: float = 1e-6
    relative: float = 1e-6
    tuples_as_lists: bool = False
    """Call style: a tuple equals a list of equal items, for tests from JSON."""

    def __post_init__(self) -> None:
        check_choice("compare mode", self.mode, Mode)
        for name in ("absolute", "relative"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"`{name}` must be at least 0, got {getattr(self, name)!r}")


TOKENS, EXACT = Compare("tokens"), Compare("exact")


@dataclass(frozen=True, slots=True)
class Program:
    """Untrusted Python source.

    `entry` is None for a program that reads stdin and prints, else the callable of its call tests:
    the name of a function, or `Class.method` (with an instance made without arguments). A program
    with an entry runs as an imported module does, under a name other than `__main__`.
    """

    source: str
    entry: str | None = None


@dataclass(frozen=True, slots=True)
class StdinTest:
    """Run the program with `stdin` and compare its output with `expected`."""

    stdin: str
    expected: str
    compare: Compare = TOKENS


@dataclass(frozen=True, slots=True)
class CallTest:
    """Call the entry and compare its result with `expected`.

    Arguments and expected value are plain data: None, bool, int, float, complex, str, bytes, dates,
    ranges, and lists, tuples, sets, frozensets and dicts of them. Types count: a tuple is not a
    list, True is not 1; only a returned Counter, OrderedDict or defaultdict counts as a dict.
    """

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    compare: Compare = EXACT


@dataclass(frozen=True, slots=True)
class CheckTest:
    """Test code in a second box that calls the program's entry through the host.

    `code` is executed in a namespace with the entry as `candidate` and under its own name; then
    `call` is executed (HumanEval: `check(candidate)`; MBPP: nothing, the asserts are in `code`).
    `setup`, helpers of the test code, is executed first, before the entry's name is bound. An
    AssertionError means WA. The program cannot see this text.
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
    """The end of stderr."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    memory_mb: float = 0.0
    """Peak resident memory."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a program: the cases of its tests in order, up to the last one that ran."""

    status: Status
    """AC if every test passed, else the status of the first failed case."""
    cases: tuple[Case, ...]
    total: int
    """Number of tests, including those not run."""
    tier: str = ""
    """Isolation of the run; see `flowzoo.sandbox.BACKENDS`."""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> int:
        """Number of tests passed."""
        return sum(case.status == "AC" for case in self.cases)

    @property
    def fraction(self) -> float:
        """Fraction of all tests that passed."""
        return self.passed / self.total if self.total else 0.0


# Packages that programs may import in addition to the standard library, only if named. A box
# imports them, with one thread each, before it gets a program, so forks have them. They start no
# threads and read no files after the import.
PACKAGES = ("numpy",)


def package_names(text: str) -> tuple[str, ...]:
    """The names in a text such as `numpy`, separated by commas, in order."""
    return tuple(sorted({name.strip() for name in text.split(",") if name.strip()}))


def check_packages(text: str | Iterable[str]) -> tuple[str, ...]:
    """Check that every package is known and installed."""
    names = package_names(text) if isinstance(text, str) else tuple(sorted(set(text)))
    for name in names:
        check_choice("package of the sandbox", name, PACKAGES)
    package_folders(names)
    return names


def package_folders(names: Iterable[str]) -> list[Path]:
    """Folders of installed packages: their modules and the accompanying libraries."""
    folders = []
    for name in names:
        spec = find_spec(name)
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise UsageError(
                f"the package {name} is not installed, so sandboxes cannot have it: pip install "
                f"{name}"
            )
        home = Path(places[0]).resolve()
        folders += [path for path in (home, home.with_name(f"{name}.libs")) if path.is_dir()]
    return folders


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Version by name of installed packages."""
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
        return f"A sandbox can only have {', '.join(PACKAGES)}."
    return (
        f"Add it for programs and tests with --options packages={names} (an image of your own: "
        f"flowzoo sandbox build --with {names})."
    )
