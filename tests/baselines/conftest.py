"""A tiny random model and rows for it, as fixtures that are functions."""

import json
import multiprocessing
import os
import random
import runpy
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from flowzoo.envs.records import Call
from tests.baselines.rows import VOCAB, new_call, tiny_model

WARM = Path(__file__).parent / "warm.py"


@pytest.fixture(name="tiny_model")
def _tiny_model() -> Callable[..., Any]:
    """`tiny_model(seed, layers, **changes)`: a Qwen3 of two layers, the same for the same seed."""
    return tiny_model


@pytest.fixture
def role_rows() -> Callable[..., list[Call]]:
    """`role_rows(count)`: rows of unequal lengths of the roles a, b and c in turn."""

    def make(count: int = 9, seed: int = 0) -> list[Call]:
        rng = random.Random(seed)
        calls: list[Call] = []
        for number in range(count):
            role = "abc"[number % 3]
            output = tuple(rng.randrange(VOCAB) for _ in range(rng.choice((1, 2, 5, 9))))
            calls.append(
                new_call(
                    problem=f"p{number % 2}",
                    episode=f"e{number:03d}",
                    role=role,
                    policy="shared",
                    output_ids=output,
                    prompt_ids=tuple(rng.randrange(1, VOCAB) for _ in range(rng.randint(1, 7))),
                )
            )
        return calls

    return make


@pytest.fixture
def row_logps() -> Callable[..., Any]:
    """`row_logps(model, call, temperature)`: (tokens, vocabulary), one row at a time."""

    def compute(model: Any, call: Call, temperature: float = 1.0) -> Any:
        import torch

        ids = torch.tensor([[*call.prompt_ids, *call.output_ids]])
        logits = model(input_ids=ids, use_cache=False).logits[0] / temperature
        start = len(call.prompt_ids) - 1
        return logits.log_softmax(-1)[start : start + len(call.output_ids)]

    return compute


@pytest.fixture
def own_logps(row_logps: Callable[..., Any]) -> Callable[..., list[Call]]:
    """`own_logps(model, calls)`: the calls as if the model had sampled them."""

    def record(model: Any, calls: list[Call], temperature: float = 1.0) -> list[Call]:
        import torch

        found = []
        for call in calls:
            with torch.no_grad():
                logps = row_logps(model, call, temperature)
            chosen = [float(logps[t, token]) for t, token in enumerate(call.output_ids)]
            found.append(replace(call, logps=tuple(chosen)))
        return found

    return record


@pytest.fixture
def same_files() -> Callable[..., None]:
    """`same_files(one, other, step)`: two runs have equal transcripts, and weights after `step`."""

    def check(one: Path, other: Path, step: int) -> None:
        for kind in (
            "transcripts/*.jsonl", f"checkpoints/step-{step:08d}/policies/*/*.safetensors"
        ):  # fmt: skip
            files = sorted(one.glob(kind))
            assert files
            for path in files:
                assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path

    return check


@pytest.fixture(scope="session")
def repeated_rows() -> Callable[[Path], list[dict[str, Any]]]:
    """`repeated_rows(root)`: the metrics of a run, less what depends on the machine's speed.

    None before its first row.
    """
    from flowzoo.baselines.run.directory import VOLATILE

    def read(root: Path) -> list[dict[str, Any]]:
        path = root / "metrics.jsonl"
        rows = map(json.loads, path.read_bytes().splitlines()) if path.exists() else ()
        return [
            {name: value for name, value in row.items() if not name.startswith(VOLATILE)}
            for row in rows
        ]

    return read


@dataclass(frozen=True)
class WarmCommand:
    """A command that runs in a fork, with the files of its output."""

    process: BaseProcess
    out: Path
    err: Path

    def finish(self, seconds: float = 900) -> subprocess.CompletedProcess[str]:
        """Wait for its end."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, "waited in vain"
        said = [path.read_text(encoding="utf-8") for path in (self.out, self.err)]
        return subprocess.CompletedProcess((), self.process.exitcode, *said)

    def kill(self) -> None:
        """Kill -9, and wait until it is gone."""
        self.process.kill()
        self.process.join()


@pytest.fixture(scope="session")
def fork_server() -> Any:
    """Processes that begin with torch and the trainer loaded, in milliseconds instead of seconds.

    Only where importing is not what a test is about; `tests/baselines/matrix/test_matrix.py` and
    `tests/commands/test_cli.py` start commands as people do. `tests/conftest.py` starts the server.
    """
    return multiprocessing.get_context("forkserver")


@pytest.fixture
def warm(tmp_path: Path, fork_server: Any) -> Iterator[Callable[..., WarmCommand]]:
    """`warm(words)`: start `python -m` with these words; `.finish()` waits for its end.

    With the variables of this process at that time, and one thread.
    """
    begun: list[WarmCommand] = []

    def start(words: Sequence[str]) -> WarmCommand:
        out, err = (tmp_path / f"warm-{len(begun)}.{kind}" for kind in ("out", "err"))
        given = {
            "WORDS": tuple(words), "VARIABLES": {**os.environ, "OMP_NUM_THREADS": "1"},
            "OUT": str(out), "ERR": str(err),
        }  # fmt: skip
        process = fork_server.Process(target=runpy.run_path, args=(str(WARM), given))
        process.start()
        begun.append(WarmCommand(process, out, err))
        return begun[-1]

    yield start
    for command in begun:
        command.kill()


@pytest.fixture
def hold_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Path]:
    """`hold_before(path)`: the first process that would write or rename to `path` waits.

    Of processes started from now on. Returns the file that exists as soon as one waits: the moment
    to kill it. Those that come to the same place later are not held.
    """

    def arm(target: Path) -> Path:
        reached = tmp_path / f"held-{target.name}"
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "held"), prepend=os.pathsep)
        monkeypatch.setenv("FLOWZOO_TEST_HOLD", os.path.abspath(target))
        monkeypatch.setenv("FLOWZOO_TEST_HELD", str(reached))
        return reached

    return arm


@pytest.fixture
def kill_before(
    hold_before: Callable[[Path], Path], warm: Callable[..., WarmCommand]
) -> Callable[[Sequence[str], Path], None]:
    """`kill_before(words, path)`: start a command and kill -9 it where `hold_before` holds.

    The words are those after `python -m`.
    """

    def start(words: Sequence[str], target: Path) -> None:
        held = hold_before(target)
        command = warm(words)
        deadline = time.monotonic() + 600
        while not held.exists():
            assert command.process.is_alive(), "it ended before it could be killed"
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)
        command.kill()

    return start
