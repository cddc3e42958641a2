"""Trained tokens per second, FLOP utilisation and memory of the learner on one device.

    python -m benchmarks.gpu.learner --size 1.7B --compute bfloat16 --json learner-1.7B.json
    python -m benchmarks.gpu.learner --size tiny --rows 16                   # any CPU

Rows of random tokens go through the learner that training uses: log-probs, clipped loss, backward,
AdamW. `--lora` trains an adapter on a frozen base instead of all weights.
"""

from __future__ import annotations

import random
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.common import card, device_name, random_model, report, stopwatch, train_flops
from benchmarks.harness.memory import held_bytes, peak_gib, peak_memory
from flowzoo.arguments import read_arguments


@dataclass(frozen=True)
class Options:
    """What is measured."""

    size: str = "tiny"
    """tiny, 0.6B, 1.7B or 4B."""
    rows: int = 256
    """Rows of an update."""
    prompt: int = 192
    """Prompt tokens of a row."""
    output: int = 64
    """Longest reply; lengths are uniform from 1."""
    updates: int = 3
    """Timed updates, after one that is not."""
    fixed_order: bool = True
    """Add up in a fixed order, as deterministic runs do."""
    microbatch_tokens: int = 16384
    """Most positions of a forward pass."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Number format of matrix products; weights and optimizer stay in float32."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass."""
    lora: bool = False
    """Train an adapter of rank 16 on a frozen base."""
    json: Path | None = None
    """File for the results."""


def random_calls(options: Options, vocabulary: int) -> list[Any]:
    """Calls of random tokens, log-probs near those of a uniform distribution."""
    from flowzoo.envs import Call

    rng = random.Random(0)
    calls = []
    for number in range(options.rows):
        length = rng.randint(1, options.output)
        calls.append(
            Call(
                problem=f"p{number // 8}", episode=f"p{number // 8}#{number % 8}",
                agent="generator_0", role="generator", slot=0, turn=0, phase=0, messages=(),
                reply="", strict=True, lenient=True, role_score=None, parts={}, reward=0.0,
                state_hash="", prompts="",
                prompt_ids=tuple(rng.randrange(vocabulary) for _ in range(options.prompt)),
                output_ids=tuple(rng.randrange(vocabulary) for _ in range(length)),
                logps=(-6.0,) * length,
            )
        )  # fmt: skip
    return calls


def estimate(model: Any, learner: Any, tokens: int) -> dict[str, int]:
    """The same parts as `benchmarks.plan` counts them, for rows that share no tokens."""
    from benchmarks.plan.activations import count_activations
    from benchmarks.plan.memory import learner_memory
    from benchmarks.plan.shape import shape_of
    from flowzoo.baselines.learner.lora import LoraSettings

    config = replace(
        learner.config, microbatch_tokens=min(tokens, learner.config.microbatch_tokens)
    )
    adapter = learner.weights.is_adapter
    found = learner_memory(
        shape_of(model.config),
        count_activations(
            model.config, LoraSettings() if adapter else None, config.weights, config.compute
        ),
        config,
        adapter=sum(weight.numel() for weight in learner.parameters) if adapter else 0,
        gpu=device_name() == "cuda",
    )
    return {**found.held, **found.learning, "most at a time": found.peak}


def main(options: Options) -> int:
    """Time the updates and print one JSON object."""
    from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
    from flowzoo.baselines.learner.update import Learner, LearnerConfig

    memory: dict[str, int] = {}
    empty = held_bytes()
    model = random_model(options.size, device_name())
    memory["weights"] = held_bytes() - empty
    lora = LoraBase(model, "", LoraSettings()).add("a", 0) if options.lora else None
    config = LearnerConfig(
        lr=1e-5, microbatch_tokens=options.microbatch_tokens, compute=options.compute,
        gradient_checkpointing=options.gradient_checkpointing, fixed_order=options.fixed_order,
    )  # fmt: skip
    learner = Learner(lora or model, config)
    calls = random_calls(options, model.config.vocab_size)
    advantages = [1.0 if number % 2 else -1.0 for number in range(len(calls))]
    before = held_bytes()
    learner.update(calls, advantages)
    memory["optimizer"] = held_bytes() - before
    times: dict[str, float] = {}
    with peak_memory(memory, "most at a time"), stopwatch(times, "update"):
        for _ in range(options.updates):
            learner.update(calls, advantages)
    memory["most at a time"] -= empty
    lengths = [len(call.prompt_ids) + len(call.output_ids) for call in calls]
    tokens, seconds = sum(lengths), times["update"] / options.updates
    length = sum(lengths) // len(lengths)
    flops = train_flops(options.size, tokens, length, frozen=options.lora)
    limit = card()
    report(
        {
            "benchmark": "learner",
            "options": asdict(options),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "trained_parameters": sum(weight.numel() for weight in learner.parameters),
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
            "flops_per_second": flops / seconds,
            "mfu": flops / seconds / limit if limit else None,
            "peak_gib": peak_gib(),
            "memory": memory,
            "estimate": estimate(model, learner, sum(lengths)),
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(read_arguments(Options, __doc__)))
