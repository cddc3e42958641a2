"""What tests that call a program many times cost, beside one subprocess that runs both together.

    python benchmarks/check_speed.py                              # every tier of this machine
    python benchmarks/check_speed.py --tiers docker --calls 1000 --before ../main --rounds 9

For 1, 3, 100 and 1,000 calls of a trivial function, a test of as many asserts (`lines`) or of a
loop (`loop`) is judged by the sandbox, one program at a time, and run by `python -I` with the
function in front of it, without any isolation. All take turns within a round, with `--before` the
sandbox of another checkout, too, so that a busy machine slows all of them; ratios are taken within
a round. Milliseconds: median (min-max).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from flowzoo.sandbox import CheckTest, Limits, Program, Sandbox, probe

CALLS = (1, 3, 100, 1000)
FUNCTION = "def f(x):\n    return x + 1\n"
LIMITS = Limits(cpu_s=60.0, wall_s=600.0)
HERE = Path(__file__).resolve().parents[1]


def test_code(kind: str, calls: int) -> str:
    """The code of a test that makes so many calls."""
    if kind == "loop":
        return f"for i in range({calls}):\n    assert f(i) == i + 1\n"
    return "".join(f"assert f({i}) == {i + 1}\n" for i in range(calls))


def serve(tier: str) -> None:
    """Judge what comes as lines `KIND CALLS`, and print the seconds that each took."""
    with Sandbox(tier, workers=1) as sandbox:  # type: ignore[arg-type] - of `usable_tiers`
        print(json.dumps(sandbox.tier), flush=True)
        for line in sys.stdin:
            kind, calls = line.split()
            tests = [[CheckTest(test_code(kind, int(calls)))]]
            begun = time.perf_counter()
            [verdict] = sandbox.run_sync([Program(FUNCTION, "f")], tests, LIMITS)
            if verdict.status != "AC":
                raise RuntimeError(f"{tier}, {line.strip()}: {verdict}")
            print(json.dumps(time.perf_counter() - begun), flush=True)


class Served:
    """A sandbox of a checkout, in a process of its own."""

    def __init__(self, checkout: Path, tier: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{SERVE}serve({tier!r})"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(checkout)}, cwd=checkout,
        )  # fmt: skip
        self._read()

    def run(self, kind: str, calls: int) -> float:
        """Seconds for one program."""
        self.process.stdin.write(f"{kind} {calls}\n")  # type: ignore[union-attr]
        self.process.stdin.flush()  # type: ignore[union-attr]
        return float(self._read())

    def _read(self) -> Any:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise RuntimeError(f"the sandbox ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End it."""
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait(60)


SERVE = (
    "import runpy\n"
    f"serve = runpy.run_path({str(Path(__file__).resolve())!r}, run_name='check_speed')['serve']\n"
)


def run_alone(kind: str, calls: int) -> float:
    """Seconds of one subprocess that runs function and test."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(FUNCTION + test_code(kind, calls))
        file.flush()
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-I", file.name], check=True)
        return time.perf_counter() - begun


def usable_tiers() -> list[str]:
    """The tiers that work here."""
    found = probe()
    works = {"docker": found.docker.ok, "namespaces": found.namespaces.ok and found.seccomp}
    works["landlock"] = found.landlock_abi > 0 and found.seccomp
    return [tier for tier, ok in works.items() if ok]


def shown(seconds: list[float]) -> str:
    """Median and range in milliseconds."""
    low, middle, high = (1000 * f(seconds) for f in (min, statistics.median, max))
    return f"{middle:.0f} ({low:.0f}-{high:.0f})"


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tiers", nargs="+", default=usable_tiers())
    parser.add_argument("--before", type=Path, help="another checkout, for the same measurement")
    parser.add_argument("--calls", type=int, nargs="+", default=CALLS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    checkouts = {"now": HERE} | ({"before": options.before.resolve()} if options.before else {})
    columns = [f"{name} | beside one" for name in checkouts]
    print(f"| tier | test | calls | one subprocess, ms | {' | '.join(columns)} |")
    print("|---" * (4 + 2 * len(checkouts)) + "|")
    for tier in options.tiers:
        served = {name: Served(checkout, tier) for name, checkout in checkouts.items()}
        for one in served.values():
            one.run("loop", 1)  # starts the box of the test's half
        for kind in ("lines", "loop"):
            for calls in options.calls:
                alone, found = [], {name: [] for name in served}
                for _ in range(options.rounds):
                    alone.append(run_alone(kind, calls))
                    for name, one in served.items():
                        found[name].append(one.run(kind, calls))
                cells = []
                for name in served:
                    ratios = [a / b for a, b in zip(found[name], alone, strict=True)]
                    cells.append(f"{shown(found[name])} | {statistics.median(ratios):.2f}")
                print(f"| {tier} | {kind} | {calls} | {shown(alone)} | {' | '.join(cells)} |")
                sys.stdout.flush()
        for one in served.values():
            one.close()


if __name__ == "__main__":
    main()
