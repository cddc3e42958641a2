"""What does a training step cost? The learner beside TRL's GRPOTrainer, on the same tokens.

    make env-trl                                  # TRL in an environment of its own, .venv-trl
    python benchmarks/step_cost.py                # some minutes on one thread

Three comparisons, every one of GRPO on the pocket model, float32, no KL term, AdamW, eight samples
of each prompt:

* `single`, `voting`: the learning step alone. Rows are sampled once (`single_v0`: one call an
  episode; `voting_v0`: three voters with one prompt and an aggregator) and given to both sides with
  their advantages. Timed is everything from rows in memory to changed weights: tensors, forward,
  loss and metrics, backward, clipping, AdamW. The weights after the first step are compared.
* `whole`: a step of `single_v0` with its own sampling. TRL generates with its call of transformers
  and a reward that costs nothing; ours plays the environment and grades the replies.

Both sides are processes that wait for each other, one step at a time, in alternation; both have
the same number of threads and the same number of rows in a micro-batch. A ratio is of completion
tokens per CPU-second (other programs on the machine change wall time, which is printed too), per
round; printed are the median round and the range. `padded` is this project's learner with rows
padded as TRL pads them: what is left of the ratio without common prefixes. Peak memory is that of
the whole process, libraries (about 450 MiB) included.

Measured on one thread of a two-core machine, TRL 1.16.0, ratios in CPU-seconds, median of five
rounds: `single` 2.3, 3.9 and 6.1 with 8, 32 and 128 rows in a micro-batch; `voting` 4.6, 6.6 and
8.7. `learn/update_kl` is in them: a forward pass over some rows, which weighs most where an update
is small. `whole` was 3.3 before that was measured. No weight differed after the first step. How
much rows share decides: these are eight short replies to a prompt, many of them alike.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

if TYPE_CHECKING:
    from flowzoo.baselines.trainer import Trainer

HERE = Path(__file__).parent
OURS, PADDED, TRL = "flowzoo", "padded", "TRL"


@dataclass(frozen=True)
class Options:
    """What is measured."""

    trl_python: Path = HERE.parent / ".venv-trl" / "bin" / "python"
    """Python of the environment that has TRL."""
    cases: tuple[str, ...] = ("single", "voting", "whole")
    """Comparisons: single, voting, whole."""
    microbatches: tuple[int, ...] = (8, 32, 128)
    """Rows of a micro-batch; `whole` takes the last."""
    problems: int = 16
    """Problems of a step, eight episodes each."""
    rounds: int = 5
    """Timed steps of each side, after one that is not timed."""
    threads: int = 1
    """Threads of each side."""
    json: Path | None = None
    """File for the numbers."""


def trainer(workflow: str, problems: int, folder: str) -> Trainer:
    """A trainer of this project, as `flowzoo train` makes it."""
    from flowzoo.baselines.settings.config import TrainConfig
    from flowzoo.baselines.trainer import Trainer

    config = TrainConfig(
        workflow=workflow, problems=problems, steps=10_000, eval_problems=1, truncated="train",
        transcripts_every=10_000, out=folder,
    )  # fmt: skip
    return Trainer(config)


def sample_rows(workflow: str, problems: int) -> list[dict[str, Any]]:
    """Rows of a step as the pocket model samples them, with GRPO's advantages."""
    from flowzoo.agents.rollout.episodes import EpisodeJob
    from flowzoo.baselines.advantages.compute import compute, episode_returns
    from flowzoo.baselines.engines.evaluation import sample_jobs

    with tempfile.TemporaryDirectory() as folder:
        run = trainer(workflow, problems, folder)
        task = run.workflow.task
        jobs = [
            EpisodeJob(task.problem(index, "train"), index * 8 + sample)
            for index in range(problems)
            for sample in range(8)
        ]
        sampled = sample_jobs(run.engines, run.sampler(run.workflow, 1), jobs)
        run.close()
        found = compute(
            sampled.rows, run.plan.algorithm.advantage, episode_returns(sampled.records)
        )
    rows = [asdict(call) for call in sampled.rows]
    return [{**row, "advantage": float(a)} for row, a in zip(rows, found.values, strict=True)]


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
        print(json.dumps({**spent, "tokens": tokens, "peak": peak}), flush=True)


def forced_step(job: dict[str, Any]) -> Any:
    """A step on given rows; returns their output tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    from flowzoo.baselines.learner.config import LearnerConfig
    from flowzoo.baselines.learner.loss import LossConfig
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
    run = trainer("single", job["rows"] // 8, job["folder"])
    for learner in run.learners.values():
        learner.config = replace(learner.config, microbatch_rows=job["microbatch"])

    def step() -> int:
        before, run.step = run.tokens, run.step + 1
        run.iterate(run.step)
        return run.tokens - before

    return step


class Side:
    """A process that does steps when told."""

    def __init__(self, command: list[str], job: dict[str, Any], threads: int) -> None:
        """Start it."""
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "job.json"
        path.write_text(json.dumps({**job, "folder": self.folder.name, "threads": threads}))
        self.log = (Path(self.folder.name) / "log").open("w+")
        self.process = subprocess.Popen(
            [*command, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
        )  # fmt: skip

    def step(self) -> dict[str, float]:
        """One step; other output of the process is passed over."""
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


def compare(case: str, microbatch: int, rows: list[dict[str, Any]], options: Options) -> Any:
    """Steps of all sides in alternation; a row of the table."""
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
    for_trl = {**job, "given": [given(row) for row in rows]}
    mine = [sys.executable, __file__, "--serve"]
    sides = {OURS: Side(mine, {**job, "layout": "packed"}, options.threads)}
    if not whole:
        sides[PADDED] = Side(mine, {**job, "layout": "padded"}, options.threads)
    theirs = [str(options.trl_python), str(HERE / "trl_worker.py")]
    sides[TRL] = Side(theirs, for_trl, options.threads)
    try:
        for side in sides.values():
            side.step()
        gap = None if whole else weight_gap(sides[OURS].weights(), sides[TRL].weights())
        rounds = [
            {name: side.step() for name, side in sides.items()} for _ in range(options.rounds)
        ]
    finally:
        for side in sides.values():
            side.close()
    return {"case": case, "microbatch": microbatch, "rows": len(rows), "gap": gap, "rounds": rounds}


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


def speed(step: dict[str, float], clock: str) -> float:
    """Completion tokens per second."""
    return step["tokens"] / step[clock]


def ratio_of(medians: dict[tuple[str, str], float], side: str) -> str:
    """A side's ratio in CPU-seconds, where it took part."""
    return f"{medians[side, 'cpu']:.2f}" if (side, "cpu") in medians else ""


def report(results: list[dict[str, Any]]) -> None:
    """Print the table."""
    print(f"{'case':8}{'micro':>6}{'rows':>6} {'tok/CPU-s':>28} {'ratio to TRL, CPU (range)':>28}"
          f"{'wall':>7} {'padded':>7} {'peak MiB':>18}  weights off")  # fmt: skip
    for result in results:
        rounds, sides = result["rounds"], list(result["rounds"][0])
        median = {
            name: statistics.median(speed(one[name], "cpu") for one in rounds) for name in sides
        }
        ratios = {
            (name, clock): sorted(speed(r[name], clock) / speed(r[TRL], clock) for r in rounds)
            for name in sides
            for clock in ("cpu", "seconds")
        }
        mid = {key: statistics.median(values) for key, values in ratios.items()}
        low, high = ratios[OURS, "cpu"][0], ratios[OURS, "cpu"][-1]
        peaks = "/".join(f"{max(r[name]['peak'] for r in rounds):.0f}" for name in (OURS, TRL))
        print(
            f"{result['case']:8}{result['microbatch']:6}{result['rows']:6} "
            f"{median[OURS]:12.0f} / TRL {median[TRL]:9.0f} "
            f"{mid[OURS, 'cpu']:13.2f} ({low:.2f}-{high:.2f}) {mid[OURS, 'seconds']:6.2f} "
            f"{ratio_of(mid, PADDED):>7} {peaks:>18}  "
            + ("" if result["gap"] is None else f"{result['gap']:.2%}")
        )


def main(options: Options) -> None:
    """Measure and print."""
    if not options.trl_python.exists():
        sys.exit(f"{options.trl_python} is missing: run `make env-trl`, or name --trl-python")
    results = []
    for case in options.cases:
        workflow = "voting" if case == "voting" else "single"
        rows = sample_rows(workflow, options.problems)
        random.Random(0).shuffle(rows)
        for microbatch in options.microbatches[-1:] if case == "whole" else options.microbatches:
            results.append(compare(case, microbatch, rows, options))
            report(results[-1:])
    print()
    report(results)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main(tyro.cli(Options))
