"""Everything that is to be measured on a GPU, in order of worth, one process and file a step.

    python -m benchmarks.gpu.all --out gpu-results                  # one GPU, about two hours
    python -m benchmarks.gpu.all --sizes tiny --out /tmp/results    # any CPU, as a test of itself

A step that fails or takes too long is recorded with the end of its output, and the next one begins.
The same command goes on where an earlier one stopped: steps whose file is there are done. Without
vLLM its steps are left out, and transformers samples. `summary.json` holds all of them, and the
first targets beside what was reached.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.forked import run_forked
from benchmarks.harness.record import write_results
from flowzoo.commands.arguments import read_arguments

GOALS: dict[str, dict[str, float]] = {
    "generated tokens/s": {"0.6B": 20e3, "1.7B": 12e3, "4B": 8e3},
    "model FLOP utilisation": {"0.6B": 0.25, "1.7B": 0.25, "4B": 0.25},
}
"""First targets of one H200."""


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
    models: tuple[str, ...] = ()
    """Pretrained models, as `flowzoo train --model` takes them, whose steps are timed."""
    trl: str = ""
    """Python of an environment with TRL, to time beside those; empty: without it."""
    dry: bool = False
    """Print the steps instead of taking them."""


class MeasuringStep(NamedTuple):
    """A module with arguments, and a name; its result is in `--json FILE`, if it takes that."""

    name: str
    words: tuple[str, ...]
    writes: bool = True


def steps(options: Options) -> Iterator[MeasuringStep]:
    """All of them, the most telling first."""
    tiny = options.sizes == ("tiny",)
    few = ("--problems=1", "--samples=2", "--max-tokens=8") if tiny else ()
    gpu = has_gpu()
    lower = ("--engine-dtype=bfloat16", "--compute=bfloat16") if gpu else ()
    vllm = has_vllm()
    engine = "--engine=" + ("vllm" if vllm else "transformers")
    yield from smoke(options.out, lower, vllm=vllm)
    short = ("--steps=2",) if tiny else ()
    for dtype in ("float32", "bfloat16")[: 1 + gpu]:
        yield script(
            f"repeat-{dtype}", "repeat", f"--compute={dtype}", f"--engine-dtype={dtype}", *short
        )
    for size in options.sizes:
        one = (f"--size={size}", engine, *few)
        steps_of = ("--steps=1",) if tiny else ()
        # The proof of every sync: log-probs of engine and learner, in both number formats.
        yield script(f"agreement-{size}-float32", "step", *one, *steps_of, "--lora-rank=16",
                     "--engine-dtype=float32", "--compute=float32")  # fmt: skip
        if gpu:
            yield script(f"agreement-{size}-bfloat16", "step", *one, *steps_of, "--lora-rank=16")
    for size in options.sizes:
        one = (f"--size={size}",)
        rows = ("--rows=4", "--updates=1") if tiny else ()
        reads = ("--workflows=voting",) if tiny else ()
        learn = lower[1:]
        if vllm:
            yield script(f"rollout-{size}", "rollout", *one, *few, *reads)
            yield script(f"rollout-{size}-lora", "rollout", *one, *few, *reads, "--lora")
        yield script(f"learner-{size}", "learner", *one, *rows, *learn)
        yield script(f"learner-{size}-lora", "learner", *one, *rows, *learn, "--lora")
        yield script(f"learner-{size}-again", "learner", *one, *rows, *learn,
                     "--gradient-checkpointing")  # fmt: skip
        once = ("--steps=1",) if tiny else ()
        yield script(f"step-{size}-lora", "step", *one, engine, *few, *once, "--lora-rank=16",
                     "--sharing=isolated")  # fmt: skip
        if gpu and vllm:
            yield script(f"sleep-{size}", "step", *one, "--lora-rank=16", "--sleep")
    lengths = ("--lengths", "128", "--rows=2", "--repeats=1") if tiny else ()
    yield script("attention", "attention", *lengths)
    for model in options.models:
        sides = ("default", "TRL") if options.trl else ("default",)
        yield MeasuringStep(
            f"peers-{Path(model).name.partition('.')[0]}",
            ("benchmarks.laptop_step", f"--model={model}", f"--trl={options.trl}",
             "--sides", *sides),
        )  # fmt: skip
    if vllm:
        for size in options.sizes:
            for way in ("file", "ipc", "nccl")[: 1 + min(2, gpus())]:
                yield script(
                    f"transfer-{size}-{way}", "transfer", f"--size={size}", f"--ways={way}"
                )


def smoke(out: Path, lower: Sequence[str], *, vllm: bool) -> Iterator[MeasuringStep]:
    """One step of training with every engine and layout, and a plan for a real size."""
    train = ("flowzoo.cli", "train", "voting", "--steps=1", "--problems=2", "--samples=2",
             "--eval-problems=2", "--max-tokens=16", "--restart", *lower)  # fmt: skip
    kinds = {
        "transformers": (),
        "lora": ("--sharing=isolated", "--lora-rank=8"),
        "rounding": ("--weights=bfloat16", "--gradient-checkpointing"),
        "ranks": ("--backend=torchrun", "--ranks=1", "--shard-jobs=2"),
    }
    if vllm:
        kinds |= {
            "colocated": ("--engine=vllm",),
            "colocated-lora": ("--engine=vllm", "--sharing=isolated", "--lora-rank=8"),
            "split": ("--engine=vllm", "--placement=split"),
        }
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
    status = run_forked(words[0], words[1:], log, options.limit)
    ended = f"took more than {options.limit} s" if status is None else status
    found: dict[str, Any] = {
        "name": step.name, "command": words, "seconds": time.perf_counter() - began, "ended": ended,
    }  # fmt: skip
    if ended == 0 and step.writes and file.exists():
        found["result"] = json.loads(file.read_text(encoding="utf-8"))
    elif ended != 0:
        found["said"] = log.read_text(encoding="utf-8", errors="replace")[-2000:]
    return found


def goals(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was reached of the goals; None where it was not measured."""
    results = {one["name"]: one.get("result") for one in found}
    lines: list[dict[str, Any]] = []
    for what, by_size in GOALS.items():
        for size, goal in by_size.items():
            if what == "generated tokens/s":
                result = results.get(f"rollout-{size}")
                reached = result and max(one["tokens_per_second"] for one in result["results"])
            else:
                result = results.get(f"learner-{size}")
                reached = result and result["mfu"]
            lines.append({"goal": what, "size": size, "wanted": goal, "reached": reached})
    return lines


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
        summary = {"vllm": has_vllm(), "goals": goals(found), "steps": found}
        write_results(options.out / "summary.json", summary)
    for line in goals(found):
        if line["reached"] is not None:
            print(f"{line['goal']} {line['size']}: {line['reached']:,.3g} of {line['wanted']:,.3g}")
    return min(100, sum(one["ended"] != 0 for one in found))


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
