"""What do real environments cost a vLLM engine? Rollout throughput against vLLM's own `generate`.

    python benchmarks/vllm_rollout.py            # two model sizes; some minutes on one thread

Voting episodes, 256 in flight (64 problems of a paragraph each, eight episodes of every one), run
through the rollout engine with a model of random weights. Then `LLM.generate` of vLLM gets all
their prompts at once, with the same lengths, seeds and log-probs: it knows the aggregators' prompts
in advance, which no rollout can. Both are timed alternately in one process, prefix caches emptied
before each. Further rows, on some of the prompts: `LLM.generate` without seeds and log-probs,
transformers in batches, and one request at a time.

CPU-seconds are printed beside wall time, because other programs on the machine change only the
latter. The bar: the rollout reaches 95 % of `LLM.generate` at about 25 million parameters; at
0.8 million the engine's own work per token is most of the time.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import tyro


@dataclass(frozen=True)
class Options:
    """What is measured."""

    sizes: tuple[str, ...] = ("25m", "pocket")
    """Models: `25m` and `pocket` (the shape of the shipped one), both with random weights."""
    problems: int = 64
    """Problems, each a paragraph of generated sums (about a hundred tokens)."""
    samples: int = 8
    """Voting episodes of every problem, four requests each."""
    in_flight: int = 256
    """Episodes that run at a time."""
    max_tokens: int = 32
    """Longest reply; about one token in 32 ends a reply, so lengths have a long tail."""
    rounds: int = 1
    """Repetitions of rollout and `generate`, alternating."""
    some: int = 512
    """Requests of the further rows that are sampled in batches."""
    alone: int = 12
    """Requests of the one-at-a-time row."""
    json: Path | None = None
    """File for the numbers."""


class Run(NamedTuple):
    """One timed pass over `tokens` sampled tokens."""

    tokens: int
    seconds: float
    cpu_seconds: float
    requests: int = 0


def timed(work: Callable[[], tuple[int, int]]) -> Run:
    """Time `work`, which returns its sampled tokens and its requests."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens, requests = work()
    return Run(tokens, time.perf_counter() - wall, time.process_time() - cpu, requests)


def write_model(size: str, folder: Path) -> int:
    """A Qwen3 of random weights with the pocket tokenizer in `folder`; returns its parameters."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from flowzoo.agents.pocket import pocket_path

    shape: dict[str, Any] = {}
    if size == "25m":
        shape = {
            "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
            "layer_types": ["full_attention"] * 8, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 64,
        }  # fmt: skip
    elif size != "pocket":
        sys.exit(f"size must be 25m or pocket, got {size!r}")
    torch.manual_seed(0)
    config = Qwen3Config.from_pretrained(
        pocket_path(), **{**shape, "initializer_range": 0.03, "dtype": "float32"}
    )
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(pocket_path()).save_pretrained(folder)
    return sum(weight.numel() for weight in model.parameters())


def settings() -> Any:
    """The engine of both sides."""
    from flowzoo.agents.vllm.settings import EngineSettings

    return EngineSettings(max_batch=256, kv_gib=1.0)


def voting(folder: Path, problems: int) -> Any:
    """The voting workflow over paragraphs of six sums each; the last one is asked."""
    from flowzoo.envs import make_workflow

    source = make_workflow("voting", "math").task
    lines = []
    for number in range(problems):
        parts = [source.problem(6 * number + i, "train") for i in range(6)]
        question = " ".join(part.text for part in parts)
        lines.append(json.dumps({"question": question, "answer": f"#### {parts[-1].gold}"}))
    file = folder / "problems.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return make_workflow("voting", "math", data=str(file))


def rollout(workflow: Any, player: Any, options: Options, seed: int) -> tuple[list[Any], Run]:
    """Play the episodes; their calls and the time."""
    from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout
    from flowzoo.agents.roster import Roster

    jobs = [
        EpisodeJob(workflow.task.problem(index, "all"), sample)
        for index in range(options.problems)
        for sample in range(options.samples)
    ]
    engine = Rollout(
        workflow,
        Roster.shared(player, workflow.roles),
        seed=seed,
        deterministic=False,
        in_flight=options.in_flight,
    )
    calls: list[Any] = []

    def play() -> tuple[int, int]:
        calls.extend(call for record in engine.run(jobs) for call in record.calls)
        return sum(len(call.output_ids) for call in calls), len(calls)

    return calls, timed(play)


def raw(llm: Any, calls: Sequence[Any], *, plain: bool) -> Run:
    """`LLM.generate` of the calls' prompts with the calls' lengths, all at once."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": list(call.prompt_ids)} for call in calls]
    params = [
        SamplingParams(
            temperature=1.0,
            max_tokens=len(call.output_ids),
            ignore_eos=True,
            detokenize=plain,
            **({} if plain else {"seed": number, "logprobs": 0, "flat_logprobs": True}),
        )
        for number, call in enumerate(calls)
    ]
    llm.reset_prefix_cache()

    def generate() -> tuple[int, int]:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs), len(outputs)

    return timed(generate)


def answer_all(player: Any, calls: Sequence[Any], *, alone: bool) -> Run:
    """The calls' own prompts through a policy: in one go, or one after the other."""
    from flowzoo.agents import Request

    requests = [
        Request((call.episode, call.agent, call.turn), call.agent, call.role, call.messages)
        for call in calls
    ]

    async def ask() -> list[Any]:
        if not alone:
            return await player.generate(requests)
        return [(await player.generate([request]))[0] for request in requests]

    def work() -> tuple[int, int]:
        done = asyncio.run(ask())
        return sum(len(row.output_ids) for row in done), len(done)

    return timed(work)


def measure(size: str, options: Options) -> dict[str, Any]:
    """All rows of one model size."""
    from vllm import LLM

    from flowzoo.agents import Sampling
    from flowzoo.agents.hf.policy import TransformersPolicy
    from flowzoo.agents.vllm.engine import VLLMEngine
    from flowzoo.agents.vllm.policy import VLLMPolicy
    from flowzoo.agents.vllm.settings import engine_fields

    sampling = Sampling(max_tokens=options.max_tokens)
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_model(size, Path(folder))
        engine = VLLMEngine.local(folder, settings())
        engine.stop_ids = tuple(range(0, 768, 32))
        llm = LLM(**engine_fields(folder, settings(), cpu=True))
        theirs = TransformersPolicy.from_pretrained(folder, sampling=sampling, max_batch=256)
        theirs._stop_ids = frozenset(engine.stop_ids)
        workflow = voting(Path(folder), options.problems)
        few = replace(options, problems=4)
        rollout(workflow, VLLMPolicy(engine, sampling=sampling), few, seed=99)  # warms up
        rows: dict[str, list[Run]] = {"rollout": [], "generate": []}
        hits: list[float] = []
        calls: list[Any] = []
        for round_ in range(options.rounds):
            player = VLLMPolicy(engine, sampling=sampling)
            engine.backend.reset_cache()
            calls, run = rollout(workflow, player, options, seed=round_)
            rows["rollout"].append(run)
            hits.append(player.stats.cache_hits)
            rows["generate"].append(raw(llm, calls, plain=False))
            print(f"{size}: {run}, {rows['generate'][-1]}", file=sys.stderr, flush=True)
        rows["generate, plain"] = [raw(llm, calls[: options.some], plain=True)]
        rows["transformers, batched"] = [answer_all(theirs, calls[: options.some], alone=False)]
        engine.backend.reset_cache()
        one = VLLMPolicy(engine, sampling=sampling)
        rows["vllm, one at a time"] = [answer_all(one, calls[: options.alone], alone=True)]
        engine.close()
        del llm
    return summary(size, parameters, rows, hits)


def summary(
    size: str, parameters: int, rows: dict[str, list[Run]], hits: list[float]
) -> dict[str, Any]:
    """Medians over the rounds and the two ratios that matter."""
    table = {
        name: {
            "tokens_per_second": statistics.median(r.tokens / r.seconds for r in runs),
            "tokens_per_cpu_second": statistics.median(r.tokens / r.cpu_seconds for r in runs),
            "runs": [r._asdict() for r in runs],
        }
        for name, runs in rows.items()
    }
    pairs = list(zip(rows["rollout"], rows["generate"], strict=True))
    return {
        "size": size,
        "parameters": parameters,
        "rows": table,
        "prefix_cache_hits": statistics.median(hits),
        "rollout_over_generate": statistics.median(
            (a.tokens / a.seconds) / (b.tokens / b.seconds) for a, b in pairs
        ),
        "rollout_over_generate_cpu": statistics.median(
            (a.tokens / a.cpu_seconds) / (b.tokens / b.cpu_seconds) for a, b in pairs
        ),
    }


def show(found: dict[str, Any]) -> None:
    """Print the rows of one size."""
    print(f"\n{found['size']}: {found['parameters'] / 1e6:.1f} million parameters, float32")
    for name, row in found["rows"].items():
        runs = row["runs"]
        print(
            f"  {name:24s} {row['tokens_per_second']:8,.0f} tok/s  "
            f"{row['tokens_per_cpu_second']:8,.0f} tok/CPU-s   "
            f"{runs[-1]['requests']:,} requests, {runs[-1]['tokens']:,} tokens"
        )
    print(
        f"  rollout / generate       {100 * found['rollout_over_generate']:.1f} % by wall time, "
        f"{100 * found['rollout_over_generate_cpu']:.1f} % by CPU time"
    )
    print(f"  prefix-cache hit rate    {100 * found['prefix_cache_hits']:.1f} % of prompt tokens")


def main(options: Options) -> int:
    """Measure every size; exit status 1 if the 25m rollout misses the bar by wall time."""
    from flowzoo.agents.vllm.settings import prepare_environment

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_environment(cpu=True)
    found = [measure(size, options) for size in options.sizes]
    for one in found:
        show(one)
    if options.json:
        report = {"options": asdict(options) | {"json": str(options.json)}, "results": found}
        options.json.write_text(json.dumps(report, indent=1, default=str) + "\n")
    return int(any(one["size"] == "25m" and one["rollout_over_generate"] < 0.95 for one in found))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
