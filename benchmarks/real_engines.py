"""Tokens per second of the transformers engine and of vLLM, with a pretrained model.

    python -m benchmarks.real_engines --model MODEL                      # generated mathematics
    python -m benchmarks.real_engines --model MODEL --code HumanEval.jsonl --json out.json

Every engine and number format answers the same prompts at once, in turns; a unit is a token that
was sampled. Lengths are the model's own, up to `--max-tokens`.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.record import write_results
from benchmarks.harness.timing import Contender, race
from flowzoo.agents import Request, Sampling
from flowzoo.agents.engines import find_engine
from flowzoo.agents.specs import NamedModel
from flowzoo.agents.traits import EngineDType
from flowzoo.commands.arguments import read_arguments
from flowzoo.envs import make_env, make_workflow


@dataclass(frozen=True)
class Options:
    """What is sampled, and how often."""

    model: str
    """Folder, GGUF file or name of the model."""
    engines: tuple[str, ...] = ("transformers", "vllm")
    """Engines of this process."""
    dtypes: tuple[EngineDType, ...] = ("bfloat16", "float32")
    """Number formats."""
    maths: int = 32
    """Prompts of generated mathematics of level 1."""
    code: str = ""
    """File of programming problems, e.g. HumanEval."""
    codes: int = 16
    """Prompts of these."""
    max_tokens: int = 128
    """Most tokens of a reply."""
    rounds: int = 3
    """Turns of every contender."""
    json: Path | None = None
    """File for the figures."""


def prompts(options: Options) -> list[Any]:
    """The first prompt of `single` on every problem."""
    chosen = [(make_workflow("single", "math", level=1), options.maths)]
    if options.code:
        chosen.append((make_workflow("single", "code", data=options.code), options.codes))
    found: list[Any] = []
    for workflow, count in chosen:
        env = make_env(workflow)
        for index in range(count):
            env.reset(options={"index": index})
            found.append(env.observe(env.agent_selection)["messages"])
    return found


def contender(options: Options, engine: str, dtype: EngineDType, chats: Any) -> Contender:
    """An engine, started and warm, that answers all prompts."""
    sampling = Sampling(max_tokens=options.max_tokens)
    policy = NamedModel(options.model, find_engine(engine), "").open(dtype, 1.0, sampling=sampling)

    def work() -> int:
        requests = [Request(("turn", n), "p", "p", chat) for n, chat in enumerate(chats)]
        return sum(len(one.output_ids) for one in asyncio.run(policy.generate(requests)))

    asyncio.run(policy.generate([Request(("warm",), "p", "p", chats[0], max_tokens=4)]))
    return Contender(f"{engine} {dtype}", work)


def main(options: Options) -> None:
    """Race, and print tokens per second."""
    chats = prompts(options)
    contenders = [
        contender(options, engine, dtype, chats)
        for engine in options.engines
        for dtype in options.dtypes
    ]
    found = race(contenders, options.rounds)
    print(json.dumps(found, indent=1))
    if options.json:
        write_results(options.json, found)


if __name__ == "__main__":
    main(read_arguments(Options))
