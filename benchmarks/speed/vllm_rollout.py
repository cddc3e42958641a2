"""What do real environments cost a vLLM engine? Rollouts beside vLLM's own `generate`.

Voting episodes, 256 in flight (64 problems of a paragraph each, eight episodes of every one), run
through the rollout engine with a model of random weights. Then `LLM.generate` of vLLM gets all
their prompts at once, with the same lengths, seeds and log-probs: it knows the aggregators' prompts
in advance, which no rollout can. Both take turns in one process, prefix caches emptied before each.
A unit is a sampled token. At 0.8 million parameters the engine's own work per token is most of the
time.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.record import Row
from benchmarks.harness.timing import Lap, Workload, measure_lap, spread, summary
from flowzoo.extras import is_installed

SIZES = ("25m", "pocket")
"""Models: `25m` and `pocket` (the shape of the shipped one), both with random weights."""


@dataclass(frozen=True, slots=True)
class VllmLoad:
    """What is played."""

    problems: int = 64
    """Problems, each a paragraph of generated sums (about a hundred tokens)."""
    samples: int = 8
    """Voting episodes of every problem, four requests each."""
    in_flight: int = 256
    """Episodes that run at a time."""
    max_tokens: int = 32
    """Longest reply; about one token in 32 ends a reply, so lengths have a long tail."""


def write_model(size: str, folder: Path) -> int:
    """A Qwen3 of random weights with the pocket tokenizer in `folder`; returns its parameters."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from flowzoo.agents.pocket import pocket_path

    shape: dict[str, Any] = {"initializer_range": 0.03, "dtype": "float32"}
    if size == "25m":
        shape |= {
            "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
            "layer_types": ["full_attention"] * 8, "num_attention_heads": 8,
            "num_key_value_heads": 4, "head_dim": 64,
        }  # fmt: skip
    torch.manual_seed(0)
    config = Qwen3Config.from_pretrained(pocket_path(), **shape)
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(pocket_path())
    tokenizer.save_pretrained(folder)
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


def rollout(workflow: Any, player: Any, load: VllmLoad, seed: int) -> tuple[list[Any], Lap]:
    """Play the episodes; their calls and the time."""
    from flowzoo.agents.policy_map import PolicyMap
    from flowzoo.agents.rollout.episodes import EpisodeJob, Rollout

    jobs = [
        EpisodeJob(workflow.task.problem(index, "all"), sample)
        for index in range(load.problems)
        for sample in range(load.samples)
    ]
    engine = Rollout(
        workflow,
        PolicyMap.shared(player, workflow.roles),
        seed=seed,
        deterministic=False,
        in_flight=load.in_flight,
    )
    calls: list[Any] = []

    def play() -> int:
        calls.extend(call for record in engine.run(jobs) for call in record.calls)
        return sum(len(call.output_ids) for call in calls)

    return calls, measure_lap(play)


def raw(llm: Any, calls: Sequence[Any]) -> Lap:
    """`LLM.generate` of the calls' prompts with the calls' lengths, all at once."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": list(call.prompt_ids)} for call in calls]
    params = [
        SamplingParams(
            temperature=1.0, max_tokens=len(call.output_ids), ignore_eos=True, detokenize=False,
            seed=number, logprobs=0, flat_logprobs=True,
        )
        for number, call in enumerate(calls)
    ]  # fmt: skip
    llm.reset_prefix_cache()

    def generate() -> int:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return measure_lap(generate)


def measure_size(size: str, load: VllmLoad, rounds: int) -> Row:
    """All contenders with a model of one size."""
    from vllm import LLM

    from flowzoo.agents import Sampling
    from flowzoo.agents.vllm.engine import VLLMEngine
    from flowzoo.agents.vllm.policy import VLLMPolicy
    from flowzoo.agents.vllm.settings import engine_fields

    sampling = Sampling(max_tokens=load.max_tokens)
    with tempfile.TemporaryDirectory() as folder:
        parameters = write_model(size, Path(folder))
        engine = VLLMEngine.local(folder, settings())
        engine.stop_ids = tuple(range(0, 768, 32))
        llm = LLM(**engine_fields(folder, settings(), cpu=True))
        workflow = voting(Path(folder), load.problems)
        few = replace(load, problems=min(4, load.problems))
        rollout(workflow, VLLMPolicy(engine, sampling=sampling), few, seed=99)  # warms up
        laps: dict[str, list[Lap]] = {"generate": [], "rollout": []}
        hits: list[float] = []
        for number in range(rounds):
            player = VLLMPolicy(engine, sampling=sampling)
            engine.backend.reset_cache()
            calls, lap = rollout(workflow, player, load, seed=number)
            laps["rollout"].append(lap)
            hits.append(player.stats.cache_hits)
            laps["generate"].append(raw(llm, calls))
        engine.close()
        del llm
    return {
        "case": f"{parameters / 1e6:.1f} million parameters", "unit": "sampled token",
        "prefix_cache_hits": spread(hits), "contenders": summary(laps),
    }  # fmt: skip


def measure(workload: Workload) -> Iterator[Row]:
    """A row a size; one round is enough where others are many (minutes each)."""
    if not is_installed("vllm"):
        yield {"case": "voting", "absent": {"vLLM": "not installed: make env-vllm"}}
        return
    from flowzoo.agents.vllm.settings import prepare_environment

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    prepare_environment(cpu=True)
    load = VllmLoad()
    load = replace(load, problems=workload.scaled(load.problems))
    for size in SIZES:
        yield measure_size(size, load, max(1, workload.rounds // 3))
