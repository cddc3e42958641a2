"""Where the time of a whole training step goes: rollout, learning, sync, proof; and peak memory.

    python -m benchmarks.gpu.step --size 0.6B --sharing isolated --lora-rank 16 --json step.json
    python -m benchmarks.gpu.step --size tiny --problems 2 --samples 4       # any CPU

Runs the trainer itself, colocated with its engine, from random weights. Rewards are noise; the sync
proof is real and stops the run if the engine's log-probs are not the learner's. Memory is printed
beside what `benchmarks.plan` counts for the same settings with vLLM; on a CPU it is that of the
process, which has learner and engine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.common import device_name, random_model, report, stopwatch
from benchmarks.harness.memory import held_bytes, peak_gib, peak_memory
from benchmarks.plan.models import lend_tokenizer
from flowzoo.arguments import read_arguments

GIB = 2**30


@dataclass(frozen=True)
class Options:
    """What is measured."""

    size: str = "tiny"
    """tiny, 0.6B, 1.7B or 4B."""
    engine: Literal["vllm", "transformers"] = "vllm"
    """Engine that samples."""
    workflow: str = "voting"
    """Workflow that is trained."""
    prompt: int = 0
    """Tokens that the text of every problem is made to have; 0: it stays as it is."""
    max_prompt: int = 0
    """Most tokens of a prompt, which bound the engine's cache; 0: those of the model."""
    sharing: Literal["shared", "isolated"] = "shared"
    """Policy map."""
    lora_rank: int = 0
    """0 trains all weights."""
    problems: int = 16
    """Problems of a step."""
    samples: int = 8
    """Episodes of each."""
    steps: int = 3
    """Timed steps, after one that is not; 0: that one is timed."""
    max_tokens: int = 64
    """Tokens of a reply."""
    engine_memory: float = 0.0
    """GiB of KV cache; 0: what `flowzoo train` takes."""
    engine_dtype: Literal["", "float32", "bfloat16"] = ""
    """Number format of the engine; empty: bfloat16 on a GPU."""
    compute: Literal["", "float32", "bfloat16"] = ""
    """Of the learner's products; empty: bfloat16 on a GPU."""
    weights: Literal["float32", "bfloat16"] = "float32"
    """Of the learner's weights, or of the frozen base of adapters."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass."""
    microbatch_tokens: int = 4096
    """Most tokens of one forward pass of the learner."""
    sleep: bool = False
    """Release the engine's GPU memory while the learner runs."""
    json: Path | None = None
    """File for the results."""


def main(options: Options) -> int:
    """Train for a few steps and print one JSON object."""
    import torch

    from flowzoo.baselines.training.build import start_run
    from flowzoo.baselines.training.trainer import Trainer

    gpu, timed = device_name() == "cuda", max(1, options.steps)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_model(options.size, "cpu").save_pretrained(folder / "model")
        lend_tokenizer(folder / "model")
        config = settings(options, folder, gpu)
        memory = {"before": held_bytes()}
        times: dict[str, float] = {}
        with stopwatch(times, "start"), peak_memory(memory, "most at the start"):
            trainer = Trainer(start_run(config))
        memory["most at the start"] -= memory["before"]
        memory["weights and engine"] = held_bytes() - memory["before"]
        starting = times.pop("start")
        try:
            gaps = [one_step(trainer, 0, times, memory, options.prompt)]
            tokens = gaps[0]["tokens"]
            if options.steps:
                times, tokens = {}, 0
            for step in range(1, options.steps + 1):
                row = one_step(trainer, step, times, memory, options.prompt)
                gaps.append(row)
                tokens += row["tokens"]
        finally:
            trainer.close()
        together = max(row["together"] for row in gaps)
        planned = estimate(config, gpu, together) if options.engine == "vllm" else None
    found = [row["gap"] for row in gaps if row["gap"] is not None]
    results: dict[str, Any] = {
        "benchmark": "step",
        "options": asdict(options),
        "start_seconds": starting,
        "seconds_per_step": {key: value / timed for key, value in times.items()},
        "tokens_per_second": tokens / sum(times.values()),
        "sampled_tokens_per_step": tokens / timed,
        "largest_sync_gap": max(found, default=None),
        "rows_gap_max": max(row["rows_gap_max"] for row in gaps),
        "rows_gap_mean": statistics.fmean(row["rows_gap_mean"] for row in gaps),
        "peak_gib": peak_gib(),
        "memory": memory,
        "estimate": planned,
        "longest_row": max(row["longest"] for row in gaps),
        "torch_threads": torch.get_num_threads(),
    }
    row = table_row(options, results) if planned else None
    report({**results, "row of docs/data/real-shapes.json": row}, options.json)
    return 0


def table_row(options: Options, found: dict[str, Any]) -> list[str]:
    """A line of the table of real shapes: memory as measured, and as `benchmarks.plan` counts."""
    seconds, memory, counted = found["seconds_per_step"], found["memory"], found["estimate"]
    what = [options.size, options.workflow, options.sharing]
    what.append(f"LoRA {options.lora_rank}" if options.lora_rank else "all weights")
    what += ["checkpointing"] if options.gradient_checkpointing else []
    held = sum(counted[name] for name in ("learners, held", "engines, weights", "engines, cache"))
    pairs = (
        (memory["weights and engine"], held),
        (memory["most in learn"], counted["most in learn"]),
    )
    return [
        ", ".join(what), f"{found['longest_row']:,}", f"{found['start_seconds']:.0f}",
        *(f"{seconds[name]:.0f}" for name in ("rollout", "learn", "sync and proof")),
        *(f"{one / GIB:.1f} / {other / GIB:.1f}" for one, other in pairs),
        f"{found['largest_sync_gap']:.2g}",
    ]  # fmt: skip


def settings(options: Options, folder: Path, gpu: bool) -> Any:
    """Those of a run on the model in `folder`."""
    from flowzoo.baselines.settings.config import TrainConfig

    dtype = options.engine_dtype or ("bfloat16" if gpu else "float32")
    return TrainConfig(
        workflow=options.workflow, model=str(folder / "model"), sharing=(options.sharing,),
        lora_rank=options.lora_rank, engine=options.engine, engine_dtype=dtype, sync_check_every=1,
        engine_sleep=options.sleep, engine_memory=options.engine_memory,
        compute=options.compute or ("bfloat16" if gpu else "float32"), weights=options.weights,
        gradient_checkpointing=options.gradient_checkpointing, deterministic=False, lr=1e-5,
        warmup=0, problems=options.problems, samples=options.samples, steps=max(1, options.steps),
        max_tokens=options.max_tokens, max_prompt=options.max_prompt, max_batch=256,
        truncated="train",
        microbatch_tokens=options.microbatch_tokens, out=str(folder / "run"),
    )  # fmt: skip


def estimate(config: Any, gpu: bool, tokens: int) -> dict[str, int]:
    """Bytes that `RunSizes` counts for a run whose microbatches have at most `tokens` tokens.

    On a GPU the cache is what the engine takes, its share of the card; the least is given here.
    """
    from benchmarks.plan.sizes import RunSizes
    from flowzoo.agents.vllm.settings import CPU_BLOCK, CPU_KV_GIB

    sizes = RunSizes(
        replace(config, microbatch_tokens=min(tokens, config.microbatch_tokens), out="unused")
    )
    training = sizes.training
    least = sizes.least_cache(training) if gpu else sizes.least_cache(training, CPU_BLOCK)
    cache = int(config.engine_memory * GIB) or max(least, 0 if gpu else int(CPU_KV_GIB * GIB))
    engine = sizes.engine_weights(training) + cache
    found = {
        "learners, held": sizes.held(training, 1, "none"),
        "engines, weights": sizes.engine_weights(training),
        "engines, cache": cache,
        "most in learn": sizes.learners(training, 1, "none") + engine,
    }
    for name in sizes.trained:
        for part, size in sizes.learner(name, training).learning.items():
            found[f"learning, {part}"] = max(size, found.get(f"learning, {part}", 0))
    return found


def lengthened(problem: Any, tokens: int, tokenizer: Any) -> Any:
    """`problem` with its text repeated until it has so many tokens."""
    count = len(tokenizer(problem.text, add_special_tokens=False).input_ids)
    if count >= tokens:
        return problem
    text = " ".join([problem.text] * -(-tokens // count))
    return replace(problem, text=text)


def one_step(
    trainer: Any, step: int, times: dict[str, float], memory: dict[str, int], prompt: int
) -> dict[str, Any]:
    """Rollout, an update with advantages of +-1 (random weights earn no reward), and the sync.

    The most bytes in use during each, less those from before the trainer, go into `memory`.
    """
    from flowzoo.agents.rollout.episodes import EpisodeJob
    from flowzoo.baselines.training.evaluation import sample_jobs

    task, config = trainer.run.workflow.task, trainer.run.config
    tokenizer = next(iter(trainer.run.state.trained.values())).tokenizer
    jobs = [
        EpisodeJob(lengthened(task.problem(number, "train"), prompt, tokenizer), sample)
        for number in range(step * config.problems, (step + 1) * config.problems)
        for sample in range(config.samples)
    ]
    with stopwatch(times, "rollout"), peak_memory(memory, "most in rollout"):
        sampler = trainer.run.draws.sampler(trainer.run.workflow, step)
        calls = sample_jobs(trainer.run.engines, sampler, jobs).rows
    with stopwatch(times, "learn"), peak_memory(memory, "most in learn"):
        trainer.run.engines.before_learning()
        metrics = []
        for name, learner in trainer.run.learners.items():
            mine = [call for call in calls if call.policy == name]
            signs = [1.0 if number % 2 else -1.0 for number in range(len(mine))]
            metrics.append(learner.update(mine, signs))
    with stopwatch(times, "sync and proof"), peak_memory(memory, "most in sync and proof"):
        row = trainer.run.engines.sync()
    for name in ("rollout", "learn", "sync and proof"):
        memory[f"most in {name}"] -= memory["before"]
    return {
        "tokens": sum(len(call.output_ids) for call in calls),
        "together": max(
            sum(len(call.prompt_ids) + len(call.output_ids) for call in calls if call.role == role)
            for role in {call.role for call in calls}
        ),
        "longest": max(len(call.prompt_ids) + len(call.output_ids) for call in calls),
        "gap": max((row[key] for key in row if key.startswith("sync/gap_max")), default=None),
        "rows_gap_max": max(row["learn/logp_gap_max"] for row in metrics),
        "rows_gap_mean": statistics.fmean(row["learn/logp_gap_mean"] for row in metrics),
    }


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
