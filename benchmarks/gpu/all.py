"""Everything that is to be measured on a GPU, in order of worth, one process and file a step.

    python -m benchmarks.gpu.all --out gpu-results                  # one GPU, about an hour
    python -m benchmarks.gpu.all --sizes tiny --out /tmp/results    # any CPU, as a test of itself

A step that fails or takes too long is recorded with the end of its output, and the next one begins.
The same command goes on where an earlier one stopped: steps whose file is there are done. Without
vLLM its steps are left out, and transformers samples. `summary.json` holds all of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.record import write_results
from flowzoo.arguments import read_arguments


@dataclass(frozen=True)
class Options:
    """What is measured."""

    sizes: tuple[str, ...] = ("0.6B", "1.7B", "4B")
    """Sizes of models, or tiny."""
    out: Path = Path("gpu-results")
    """Folder for the results."""
    limit: int = 900
    """Seconds that a step may take."""
    only: tuple[str, ...] = ()
    """Steps whose names begin so; none: all."""
    dry: bool = False
    """Print the steps instead of taking them."""


class MeasuringStep(NamedTuple):
    """A module with arguments, and a name; its result is in `--json FILE`, if it takes that."""

    name: str
    words: tuple[str, ...]
    writes: bool = True


def steps(options: Options) -> Iterator[MeasuringStep]:
    """All of them, the most telling first."""
    tiny, gpu, vllm = options.sizes == ("tiny",), has_gpu(), has_vllm()
    few = ("--problems=1", "--samples=2", "--max-tokens=8") if tiny else ()
    lower = ("--engine-dtype=bfloat16", "--compute=bfloat16") if gpu else ()
    engine = "--engine=" + ("vllm" if vllm else "transformers")
    yield from smoke(options.out, lower, vllm=vllm)
    short = ("--steps=2",) if tiny else ()
    for dtype in ("float32", "bfloat16")[: 1 + gpu]:
        formats = (f"--compute={dtype}", f"--engine-dtype={dtype}")
        yield script(f"repeat-{dtype}", "repeat", *formats, *short)
    once = ("--steps=1",) if tiny else ()
    for size in options.sizes:
        one = (f"--size={size}", engine, *few, *once, "--lora-rank=16")
        # The proof of every sync: log-probs of engine and learner, in both number formats.
        exact = ("--engine-dtype=float32", "--compute=float32")
        yield script(f"agreement-{size}-float32", "step", *one, *exact)
        if gpu:
            yield script(f"agreement-{size}-bfloat16", "step", *one)
    rows = ("--rows=4", "--updates=1") if tiny else ()
    for size in options.sizes:
        learn = (f"--size={size}", *rows, *lower[1:])
        yield script(f"learner-{size}", "learner", *learn)
        yield script(f"learner-{size}-lora", "learner", *learn, "--lora")
        yield script(f"learner-{size}-again", "learner", *learn, "--gradient-checkpointing")
        whole = (f"--size={size}", "--lora-rank=16")
        yield script(f"step-{size}-lora", "step", *whole, engine, *few, *once, "--sharing=isolated")
        if gpu and vllm:
            yield script(f"sleep-{size}", "step", *whole, "--sleep")


def smoke(out: Path, lower: Sequence[str], *, vllm: bool) -> Iterator[MeasuringStep]:
    """One step of training with every engine and layout, and a plan for a real size."""
    train = ("flowzoo.cli", "train", "voting", "--steps=1", "--problems=2", "--samples=2",
             "--eval-problems=2", "--max-tokens=16", "--restart", *lower)  # fmt: skip
    kinds: dict[str, tuple[str, ...]] = {
        "transformers": (),
        "lora": ("--sharing=isolated", "--lora-rank=8"),
        "rounding": ("--weights=bfloat16", "--gradient-checkpointing"),
        "ranks": ("--backend=torchrun", "--ranks=1", "--shard-jobs=2"),
    }
    if vllm:
        split = ("--engine=vllm", "--placement=split")
        kinds |= {
            "colocated": split[:1],
            "colocated-lora": (*split[:1], "--sharing=isolated", "--lora-rank=8"),
            "split": split,
        }
        # Every sync is proved: the engine's log-probs must be the learner's.
        if gpus():
            kinds["ipc"] = (*split, "--weight-transfer=ipc")
        if gpus() > 1:
            kinds["nccl"] = (*split, "--weight-transfer=nccl", "--engine-devices=1")
    for name, words in kinds.items():
        folder = f"--out={out / 'runs' / name}"
        yield MeasuringStep(f"smoke-{name}", (*train, *words, folder), writes=False)
    yield MeasuringStep(
        "smoke-plan", ("benchmarks.plan", "voting", "--model=qwen3:0.6B"), writes=False
    )


def script(name: str, file: str, *words: str) -> MeasuringStep:
    """A script of this folder."""
    return MeasuringStep(name, (f"benchmarks.gpu.{file}", *words))


def has_gpu() -> bool:
    """Whether there is a GPU; torch is not asked, so that this process holds none of it."""
    return any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd"))


def has_vllm() -> bool:
    """Whether vLLM is installed."""
    return importlib.util.find_spec("vllm") is not None


def gpus() -> int:
    """How many GPUs of NVIDIA there are, whoever may use them."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def take(step: MeasuringStep, options: Options) -> dict[str, Any]:
    """Run a step; what came of it."""
    file, log = (options.out / f"{step.name}.{kind}" for kind in ("result.json", "log"))
    words = [*step.words, *([f"--json={file}"] if step.writes else [])]
    began = time.perf_counter()
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], stdout=output, stderr=output, start_new_session=True
        )
        try:
            ended: int | str = process.wait(options.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with all that it has started
            process.wait()
            ended = f"took more than {options.limit} s"
    found: dict[str, Any] = {
        "name": step.name, "command": words, "seconds": time.perf_counter() - began, "ended": ended,
    }  # fmt: skip
    if ended == 0 and step.writes and file.exists():
        found["result"] = json.loads(file.read_text(encoding="utf-8"))
    elif ended != 0:
        found["said"] = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    return found


def main(options: Options) -> int:
    """Take every step; the exit status is the number of those that failed, at most 100."""
    chosen = [
        step
        for step in steps(options)
        if not options.only or step.name.startswith(tuple(options.only))
    ]
    if options.dry:
        for step in chosen:
            print(step.name, *step.words)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    found: list[dict[str, Any]] = []
    for step in chosen:
        file = options.out / f"{step.name}.json"
        done = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        if done.get("ended") != 0:
            done = take(step, options)
            write_results(file, done)
        found.append(done)
        print(f"{step.name}: {done['ended']}, {done['seconds']:.0f} s", flush=True)
        write_results(options.out / "summary.json", {"vllm": has_vllm(), "steps": found})
    return min(100, sum(one["ended"] != 0 for one in found))


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
