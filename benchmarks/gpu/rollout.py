"""Generated tokens per second of every workflow through real environments, against the roofline.

    python -m benchmarks.gpu.rollout --size 1.7B --json rollout-1.7B.json     # one GPU
    python -m benchmarks.gpu.rollout --size tiny --problems 2 --samples 4     # any CPU

The engine runs in this process with random weights (`load_format="dummy"`), so replies are noise
of `max_tokens` tokens; the environments, prompts, sampling, log-probs and grading are real.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import card, device_name, report, shape_of, stopwatch, write_config
from benchmarks.harness.memory import peak_gib
from flowzoo.commands.arguments import read_arguments


@dataclass(frozen=True)
class Options:
    """What is measured."""

    size: str = "tiny"
    """tiny, 0.6B, 1.7B or 4B."""
    workflows: tuple[str, ...] = ("single", "voting", "eval_opt", "orch_workers")
    """Workflows, one after the other."""
    problems: int = 64
    """Problems of a rollout."""
    samples: int = 8
    """Episodes of each."""
    max_tokens: int = 64
    """Tokens of a reply."""
    max_batch: int = 256
    """Most sequences decoded together."""
    kv_gib: float = 0.0
    """KV cache in GiB; 0: a share of a GPU, and on a CPU 0.25 or a longest sequence."""
    lora: bool = False
    """One adapter for each role on the base, as isolated LoRA policies have."""
    json: Path | None = None
    """File for the results."""


def engine_settings(options: Options, adapters: int) -> Any:
    """Settings of the engine: bf16 on a GPU, float32 on a CPU."""
    from flowzoo.agents.vllm.settings import EngineSettings

    return EngineSettings(
        dtype="bfloat16" if device_name() == "cuda" else "float32",
        load_format="dummy",
        max_batch=options.max_batch,
        kv_gib=options.kv_gib,
        gpu_share=0.85,
        adapters=adapters,
        max_context=4096,
    )


def play(engine: Any, options: Options, name: str) -> dict[str, Any]:
    """One rollout of a workflow, after a small one that warms the engine up."""
    from flowzoo.agents import PolicyMap, Sampling
    from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
    from flowzoo.agents.vllm.policy import VLLMPolicy
    from flowzoo.envs import make_workflow

    workflow = make_workflow(name, "math")
    sampling = Sampling(max_tokens=options.max_tokens)
    players = {
        role: VLLMPolicy(
            engine, name=role, sampling=sampling, adapter=role if options.lora else None
        )
        for role in workflow.roles
    }
    rollout = Rollout(workflow, PolicyMap(players), deterministic=False)
    jobs = [
        EpisodeJob(workflow.task.problem(index, "train"), sample)
        for index in range(options.problems)
        for sample in range(options.samples)
    ]
    rollout.run(jobs[: options.samples])
    read = sum(one.stats.read_tokens for one in players.values())
    asked = sum(one.stats.prompt_tokens for one in players.values())
    times: dict[str, float] = {}
    with stopwatch(times, "rollout"):
        records = rollout.run(jobs)
    calls = [call for record in records for call in record.calls]
    tokens = sum(len(call.output_ids) for call in calls)
    prompt = sum(one.stats.prompt_tokens for one in players.values()) - asked
    reads = sum(one.stats.read_tokens for one in players.values()) - read
    context = sum(len(call.prompt_ids) + len(call.output_ids) / 2 for call in calls) / len(calls)
    speed = tokens / times["rollout"]
    limit = card()
    shape = shape_of(options.size)
    bound = shape.decode_limit(limit, options.max_batch, int(context)) if limit else None
    return {
        "workflow": name,
        "requests": len(calls),
        "tokens": tokens,
        "seconds": times["rollout"],
        "tokens_per_second": speed,
        "prompt_tokens": prompt,
        "prefix_cache_hits": 1 - reads / prompt,
        "mean_context": context,
        "roofline_tokens_per_second": bound,
        "of_roofline": speed / bound if bound else None,
    }


def main(options: Options) -> int:
    """Measure every workflow and print one JSON object."""
    from flowzoo.agents.vllm.engine import VLLMEngine
    from flowzoo.envs import make_workflow

    roles = {role for name in options.workflows for role in make_workflow(name, "math").roles}
    found = []
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_config(options.size, Path(folder))
        with stopwatch(times, "start"):
            engine = VLLMEngine.local(folder, engine_settings(options, len(roles) * options.lora))
        if options.lora:
            add_adapters(engine, options, sorted(roles), folder)
        try:
            found = [play(engine, options, name) for name in options.workflows]
        finally:
            engine.close()
    report(
        {
            "benchmark": "rollout",
            "options": asdict(options),
            "start_seconds": times["start"],
            "peak_gib": peak_gib(),
            "results": found,
        },
        options.json,
    )
    return 0


def add_adapters(engine: Any, options: Options, roles: list[str], folder: str) -> None:
    """An adapter of rank 16 for every role."""
    from benchmarks.gpu.common import random_model
    from flowzoo.baselines.learner.lora import LoraBase, LoraSettings

    base = LoraBase(random_model(options.size, "cpu"), folder, LoraSettings())
    for role in roles:
        engine.load_adapter(role, base.add(role, 0).save)


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
