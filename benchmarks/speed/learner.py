"""What does a learning step cost? The learner beside TRL's GRPOTrainer, on the same tokens.

GRPO on the pocket model, float32, no KL term, AdamW, eight samples of each prompt:

* `single`, `voting`: the learning step alone. Rows are sampled once (`single_v0`: one call an
  episode; `voting_v0`: three voters with one prompt and an aggregator) and given to both sides with
  their advantages. Timed is everything from rows in memory to changed weights: tensors, forward,
  loss and metrics, backward, clipping, AdamW. The weights after the first step are compared.
* `whole`: a step of `single_v0` with its own sampling. TRL generates with its call of transformers
  and a reward that costs nothing; ours plays the environment and grades the replies.

Every side is a process that waits for its turn, one step at a time, with the same number of threads
and of rows in a microbatch; a unit is a completion token. `flowzoo, padded` is this project's
learner with rows padded as TRL pads them: what is left of the ratio without common prefixes. TRL
runs in an environment of its own (`make env-trl`, then `--trl .venv-trl/bin/python`); without it
only our own sides run. Peak memory is that of the whole process, libraries included.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Lap, Workload, in_turns, summary
from flowzoo.errors import UsageError

if TYPE_CHECKING:
    from flowzoo.baselines.training.trainer import Trainer

HERE = Path(__file__).parent
OURS, PADDED, TRL = "flowzoo", "flowzoo, padded", "TRL"
CASES = ("single", "voting", "whole")
MICROBATCHES = (8, 32, 128)
"""Rows of a microbatch; `whole` takes the last."""
PROBLEMS = 16
"""Problems of a step, eight episodes each."""


def trainer(workflow: str, problems: int, folder: str) -> Trainer:
    """A trainer of this project, as `flowzoo train` makes it."""
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer

    config = TrainConfig(
        workflow=workflow, problems=problems, steps=10_000, eval_problems=1, truncated="train",
        transcripts_every=10_000, out=folder,
    )  # fmt: skip
    return Trainer(start_run(config))


def sample_rows(workflow: str, problems: int) -> list[dict[str, Any]]:
    """Rows of a step as the pocket model samples them, with GRPO's advantages."""
    from flowzoo.agents.rollout.episodes import EpisodeJob
    from flowzoo.baselines.advantages.compute import compute, episode_returns
    from flowzoo.baselines.training.evaluation import sample_jobs

    with tempfile.TemporaryDirectory() as folder:
        run = trainer(workflow, problems, folder)
        task = run.run.workflow.task
        jobs = [
            EpisodeJob(task.problem(index, "train"), index * 8 + sample)
            for index in range(problems)
            for sample in range(8)
        ]
        sampled = sample_jobs(run.run.engines, run.run.draws.sampler(run.run.workflow, 1), jobs)
        run.close()
        found = compute(
            sampled.rows, run.run.plan.algorithm.advantage, episode_returns(sampled.records)
        )
    rows = [asdict(call) for call in sampled.rows]
    return [{**row, "advantage": float(a)} for row, a in zip(rows, found.values, strict=True)]


def answer(line: str) -> None:
    """A line for the process that gives the commands."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def serve(job_file: str) -> None:
    """Be one side of this project: a step per line of input, a line of JSON for each."""
    job = json.loads(Path(job_file).read_text())
    import torch

    torch.set_num_threads(job["threads"])
    step = whole_step(job) if job["mode"] == "whole" else forced_step(job)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        tokens = step()
        spent = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        answer(json.dumps({**spent, "tokens": tokens, "peak": peak}))


def forced_step(job: dict[str, Any]) -> Any:
    """A step on given rows; returns their output tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    from flowzoo.baselines.learner.config import LearnerConfig, LossConfig
    from flowzoo.baselines.learner.update import Learner
    from flowzoo.envs import Call

    model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
    config = LearnerConfig(
        loss=LossConfig(clip_high=0.28, dual_clip=None), lr=job["lr"], truncated="train",
        microbatch_rows=job["microbatch"], microbatch_tokens=10**9, layout=job["layout"],
    )  # fmt: skip
    learner = Learner(model, config)
    rows = [dict(row) for row in job["given"]]
    advantages = [row.pop("advantage") for row in rows]
    calls = [Call(**row) for row in rows]
    tokens = sum(len(call.output_ids) for call in calls)

    def step() -> int:
        learner.update(calls, advantages)
        if learner.steps == 1:
            torch.save(model.state_dict(), Path(job["folder"]) / "weights.pt")
        return tokens

    return step


def whole_step(job: dict[str, Any]) -> Any:
    """A step with sampling and grading; returns its output tokens."""
    from flowzoo.baselines.learner.update import Learner

    run = trainer("single", job["rows"] // 8, job["folder"])
    for learner in run.run.learners.values():
        assert isinstance(learner, Learner)
        learner.gradient.config = replace(learner.config, microbatch_rows=job["microbatch"])

    def step() -> int:
        before = run.run.state.tokens
        run.run.state.step += 1
        run.iterate(run.run.state.step)
        return run.run.state.tokens - before

    return step


class LearnerSide:
    """A process that does one step per command."""

    def __init__(self, command: list[str], job: dict[str, Any], threads: int = 1) -> None:
        """Start it."""
        self.folder = tempfile.TemporaryDirectory()
        self.peak = 0.0
        """Peak memory of the timed steps, in MiB."""
        path = Path(self.folder.name) / "job.json"
        path.write_text(json.dumps({**job, "folder": self.folder.name, "threads": threads}))
        self.log = (Path(self.folder.name) / "log").open("w+")
        self.process = subprocess.Popen(
            [*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    def lap(self) -> Lap:
        """Time one step."""
        result = self.step()
        self.peak = max(self.peak, result["peak"])
        return Lap(int(result["tokens"]), result["cpu"], result["seconds"])

    def step(self) -> dict[str, float]:
        """Do one step; other output of the process is skipped."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # what it said is in its log
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{") and '"cpu"' in line:
                return json.loads(line)
        self.log.seek(0)
        sys.exit(f"a side ended: {self.log.read()[-3000:]}")

    def weights(self) -> dict[str, Any]:
        """The weights after the first step."""
        import torch

        return torch.load(Path(self.folder.name) / "weights.pt", weights_only=True)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        self.folder.cleanup()


def compare(
    case: str,
    microbatch: int,
    rows: list[dict[str, Any]],
    workload: Workload,
    absent: dict[str, str],
) -> Row:
    """Steps of all sides in turns."""
    from flowzoo.agents.pocket import pocket_path

    whole = case == "whole"
    first = list({row["problem"]: {"messages": row["messages"]} for row in rows}.values())
    # TRL's data loader wants as many prompts as rows make groups, also where rows are given.
    prompts = [first[place % len(first)] for place in range(len(rows) // 8)]
    job = {
        "mode": "whole" if whole else "forced", "model": str(pocket_path()), "lr": 2e-4,
        "microbatch": microbatch, "rows": len(rows), "samples": 8, "max_tokens": 64,
        "given": rows, "prompts": prompts,
    }  # fmt: skip
    mine = [sys.executable, "-m", "benchmarks.speed.learner", "--serve"]
    with contextlib.ExitStack() as stack:
        sides: dict[str, LearnerSide] = {}

        def start(name: str, command: list[str], job: dict[str, Any]) -> None:
            sides[name] = stack.enter_context(contextlib.closing(LearnerSide(command, job)))

        if not absent:
            theirs = [str(workload.trl), str(HERE / "trl_worker.py")]
            start(TRL, theirs, {**job, "given": [given(row) for row in rows]})
        start(OURS, mine, {**job, "layout": "packed"})
        if not whole:
            start(PADDED, mine, {**job, "layout": "padded"})
        for side in sides.values():
            side.step()
        gap = None
        if not whole and not absent:
            gap = weight_gap(sides[OURS].weights(), sides[TRL].weights())
        laps = in_turns(sides, workload.rounds, LearnerSide.lap)
        peaks = {name: round(side.peak) for name, side in sides.items()}
    return {
        "case": f"{case}, {microbatch} rows at a time", "unit": "completion token",
        "rows": len(rows), "absent": absent, "weights_that_differ": gap, "peak_mib": peaks,
        "contenders": summary(laps),
    }  # fmt: skip


def given(row: dict[str, Any]) -> dict[str, Any]:
    """What TRL needs of a row."""
    return {
        "prompt": row["prompt_ids"], "output": row["output_ids"], "advantage": row["advantage"]
    }  # fmt: skip


def weight_gap(one: dict[str, Any], two: dict[str, Any]) -> float:
    """Share of the weights in which both sides differ by more than 1e-5 after their first step.

    AdamW's first step moves a weight by the learning rate whatever its gradient's size, so steps on
    one gradient agree, except where the gradient is rounding noise; steps on other gradients
    differ in sign at many weights, hence by twice the rate.
    """
    import torch

    names = sorted(set(one) & set(two))
    if not names or len(names) != len(one):
        sys.exit("the two sides have different weights")
    gaps = torch.cat([(one[name] - two[name]).abs().flatten() for name in names])
    return float((gaps > 1e-5).double().mean())


def measure(workload: Workload) -> Iterator[Row]:
    """A row for every case and size of a microbatch."""
    absent: dict[str, str] = {}
    if workload.trl is None:
        absent[TRL] = "no --trl: `make env-trl` makes an environment for it"
    elif not Path(workload.trl).exists():
        raise UsageError(
            f"{workload.trl} does not exist: run `make env-trl`, or name another --trl"
        )
    sizes = MICROBATCHES if workload.scale == 1 else MICROBATCHES[:1]
    for case in CASES:
        workflow = "voting" if case == "voting" else "single"
        rows = sample_rows(workflow, workload.scaled(PROBLEMS))
        random.Random(0).shuffle(rows)
        for microbatch in sizes[-1:] if case == "whole" else sizes:
            yield compare(case, microbatch, rows, workload, absent)


if __name__ == "__main__" and sys.argv[1:2] == ["--serve"]:
    serve(sys.argv[2])
