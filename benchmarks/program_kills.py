"""Kill evaluations and training of agent programs at random moments: is anything lost?

    python -m benchmarks.program_kills [--kills 24] [--seed 0] [--json FILE]

Four commands: `flowzoo eval` and `flowzoo train` of a program that is a function, and of one that
is a command. Each runs once without a kill. Then its process gets SIGKILL at a random moment, no
process of it may be left, and the same command goes on in its folder. A finished run must be equal
to the first, bit for bit: episodes or transcripts, metrics, and the Parquet tables of them. Exit
status 1 if anything is lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.harness.record import write_results
from benchmarks.harness.runs import digest, digests, metrics

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import json, os, sys, time, urllib.request
ROLES = {"writer": 1, "reviewer": 1}
def ask(base_url, key, model, text):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}]})
    headers = {"Authorization": "Bearer " + key}
    request = urllib.request.Request(base_url + "/chat/completions", body.encode(), headers)
    for _ in range(600):  # a patient client: only its end stops it
        try:
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError:
            raise
        except OSError:
            time.sleep(0.1)
def solve(problem, base_url, api_key):
    time.sleep(0.05)
    draft = ask(base_url, api_key, "writer", problem)
    time.sleep(0.05)
    return ask(base_url, api_key, "reviewer", problem + draft)
if __name__ == "__main__":
    print(solve(sys.stdin.read(), os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]))
"""
EVAL = "--policy scripted:0.5 --n 24 --samples 2"
TRAIN = (
    "--model pocket:xs --steps 4 --problems 2 --samples 2 --eval-problems 2 --eval-every 2 "
    "--checkpoint-every 1 --transcripts-every 1 --max-tokens 8 --threads 1"
)
MARK = "PROGRAM_KILLS"
"""Environment variable by which the processes of a run are known."""
_END_S = 10
# Seconds within which the processes of a killed run end.


class Line(NamedTuple):
    """A command, without its folder."""

    name: str
    words: tuple[str, ...]

    @property
    def trains(self) -> bool:
        """True for `flowzoo train`."""
        return self.words[0] == "train"


def lines_of(folder: Path) -> list[Line]:
    """The four commands, of a program that is written into `folder`."""
    file = folder / "agent.py"
    file.write_text(PROGRAM, encoding="utf-8")
    forms = {
        "function": (f"{file}:solve", ()),
        "command": (shlex.join([sys.executable, str(file)]), (f"env={MARK}",)),
    }
    options = ["--options", "at_once=1", "max_open=4", "level=1", "roles=writer:1,reviewer:1"]
    return [
        Line(f"{command}, {form}", (command, "--program", program, *rest.split(), *options, *own))
        for command, rest in (("eval", EVAL), ("train", TRAIN))
        for form, (program, own) in forms.items()
    ]


class Run:
    """A started command, whose processes carry a mark."""

    def __init__(self, line: Line, out: Path) -> None:
        self.mark = secrets.token_hex(8)
        environment = {**os.environ, MARK: self.mark}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flowzoo", *line.words, "--out", str(out)],
            env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def finish(self) -> None:
        """Wait for the end; a failure raises with its message."""
        _, errors = self.process.communicate(timeout=600)
        if self.process.returncode:
            raise RuntimeError(errors.decode("utf-8", "replace")[-2000:])

    def is_over(self, seconds: float) -> bool:
        """True if the command ends within `seconds`."""
        try:
            self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to the command alone."""
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def processes(self) -> Iterator[psutil.Process]:
        """Living processes with the mark, the command included."""
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == self.mark
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    yield process
            except psutil.Error:  # ended meanwhile, or of another user
                continue

    def orphans(self) -> list[str]:
        """Command lines of processes that do not end; they are killed."""
        deadline = time.monotonic() + _END_S
        while (left := list(self.processes())) and time.monotonic() < deadline:
            time.sleep(0.05)
        names = [" ".join(process.cmdline()) for process in left]
        for process in left:
            process.kill()
        return names


def contents(line: Line, out: Path) -> dict[str, Any]:
    """All that a finished run must have in common with one that was never killed."""
    from flowzoo.baselines.run.dataset import write_dataset

    kept: dict[str, Any] = {}
    if line.trains:
        kept = {"metrics": metrics(out), **digests(out)}
    else:
        episodes = (out / "episodes.jsonl").read_bytes().splitlines()
        kept["episodes"] = sorted(episodes)  # one line each, in the order of their ends
        kept["metrics"] = digest(out / "summary.json")
    with tempfile.TemporaryDirectory() as folder:
        tables = Path(folder) / "tables"
        write_dataset((out,), tables)
        for path in sorted(tables.rglob("*.parquet")):
            kept[str(path.relative_to(tables))] = parquet_rows(path)
    return kept


def is_at_work(run: Run, line: Line, out: Path, rng: random.Random) -> bool:
    """Wait until a random moment of the run's work; False if it has ended before."""
    # Counted in work, not in seconds: most of a short run's time goes into imports.
    most = 1 if line.trains else 9
    target, rest = (
        saved(line, out) + rng.randint(0, most),
        rng.uniform(0, 1 if line.trains else 0.3),
    )
    while saved(line, out) < target:
        if run.is_over(0.01):
            return False
    return not run.is_over(rest)


def saved(line: Line, out: Path) -> int:
    """Number of episodes, or of rows of metrics, that a killed run has saved."""
    file = out / ("metrics.jsonl" if line.trains else "episodes.jsonl")
    return len(file.read_bytes().splitlines()) if file.exists() else 0


def parquet_rows(path: Path) -> list[str]:
    """Rows of a table, sorted, without the folder of the run."""
    import pyarrow.parquet

    rows = pyarrow.parquet.read_table(path).to_pylist()
    return sorted(json.dumps({**row, "source": ""}, sort_keys=True, default=str) for row in rows)


def play_killed(line: Line, folder: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill `line` so often, and compare every finished run with the first; a row of the table."""
    Run(line, folder / "whole").finish()
    whole = contents(line, folder / "whole")
    sent, orphans, differing, finished = 0, list[str](), list[str](), 0
    progress: list[int] = []
    while True:
        out = folder / f"killed-{finished}"
        run = Run(line, out)
        if sent < kills and is_at_work(run, line, out, rng):
            run.kill()
            sent += 1
            orphans += run.orphans()
            progress.append(saved(line, out))
            continue
        run.finish()
        other = contents(line, out)
        differing += [name for name in whole if whole[name] != other.get(name)]
        differing += sorted(other.keys() - whole.keys())
        finished += 1
        if sent == kills:  # the run of the last kill has gone on to its end
            break
    return {
        "command": line.name,
        "kills": sent,
        "saved at each": progress,
        "finished runs": finished,
        "differing": sorted(set(differing)),
        "orphans": orphans,
    }


def main() -> None:
    """Kill, compare, print and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=24, help="of the four commands together")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, help="file of the result")
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        folder = Path(name)
        lines, rows = lines_of(folder), []
        for number, line in enumerate(lines):
            home = folder / str(number)
            home.mkdir()
            rows.append(play_killed(line, home, given.kills // len(lines), rng))
            print(json.dumps(rows[-1]), flush=True)
    result = {
        "command": f"python -m benchmarks.program_kills --kills {given.kills} --seed {given.seed}",
        "rows": rows,
    }
    if given.json:
        write_results(given.json, result)
    sys.exit(any(row["differing"] or row["orphans"] for row in rows))


if __name__ == "__main__":
    main()
