"""Can an answerer that never searches learn the answers? Trains one on the train split, by heart.

    python benchmarks/no_search.py            # about a minute on one core

The pocket model of `search` plays `single_v0`: question in, answer out, no passages. It is measured
as shipped, then taught the right answers of the train split (supervised, which is more than
reinforcement learning could tell it) until it knows them, and measured again on the train
split and on held-out questions. Exit status 1 if a held-out accuracy reaches 5 %, or if the answers
of the train split were not learned, so that the figure would mean nothing.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from flowzoo.agents import PolicyMap, Sampling
from flowzoo.agents.evaluation.evaluate import evaluate
from flowzoo.agents.hf.policy import TransformersPolicy
from flowzoo.agents.pocket import pocket_path
from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.pocket.data import Example
from flowzoo.baselines.pocket.make import PocketConfig, encode, train
from flowzoo.envs import Problem, Workflow, make_workflow
from flowzoo.seeding import key_rng


@dataclass(frozen=True)
class Options:
    """What is learned by heart, and for how long."""

    passages: int = 1000
    """Passages of the knowledge base."""
    questions: int = 500
    """Questions of the train split that are learned."""
    held_out: int = 200
    """Questions of each of the validation and the test split."""
    steps: int = 800
    """Training steps of 32 questions each."""
    seed: int = 0
    """Seed of the order of the questions."""


def score(workflow: Workflow, folder: Path, problems: Sequence[Problem]) -> float:
    """Greedy accuracy of the model in `folder` on `problems`."""
    policy = TransformersPolicy.from_pretrained(
        folder, dtype="float32", sampling=Sampling(temperature=0.0, max_tokens=32)
    )
    policy_map = PolicyMap.shared(policy, workflow.role_counts())
    return evaluate(workflow, policy_map, problems)[1]["accuracy"]


def learned(workflow: Workflow, problems: Sequence[Problem], options: Options) -> Any:
    """The shipped model after training on the right answers to `problems`."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = pocket_path("search")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    examples = [
        Example(
            "single_v0/generator",
            ({"role": "user", "content": workflow.task.prompt(problem)},),
            f"<answer>{problem.gold}</answer>",
        )
        for problem in problems
    ]
    rows = encode(examples, AutoTokenizer.from_pretrained(source))
    config = PocketConfig(Path(), task="search", steps=options.steps, hasty_steps=0, lr=2e-3)
    rng, order = key_rng("by heart", options.seed), list[Any]()
    while len(order) < options.steps * config.batch:
        order += rng.sample(rows, len(rows))
    for _ in train(model, order, config):
        pass
    return model


def main(options: Options) -> int:
    """Measure, teach, measure again."""
    torch.set_num_threads(1)
    workflow = make_workflow("single_v0", "search", level=1, passages=options.passages)
    known = distinct_problems(workflow.task, "train", options.questions)
    held = [
        problem
        for split in ("validation", "test")
        for problem in distinct_problems(workflow.task, split, options.held_out)
    ]
    before = score(workflow, pocket_path("search"), held)
    print(f"no search, as shipped:   held-out {100 * before:4.1f} % (n={len(held)})", flush=True)
    with tempfile.TemporaryDirectory() as name:
        from transformers import AutoTokenizer

        learned(workflow, known, options).save_pretrained(name)
        tokenizer: Any = AutoTokenizer.from_pretrained(pocket_path("search"))
        tokenizer.save_pretrained(name)
        own, after = (score(workflow, Path(name), part) for part in (known, held))
    print(
        f"no search, train split learned by heart ({100 * own:.1f} % of {len(known)} right): "
        f"held-out {100 * after:4.1f} %"
    )
    return int(max(before, after) >= 0.05 or own < 0.8)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
