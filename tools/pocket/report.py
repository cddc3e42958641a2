"""What a pocket model scores on held-out problems, and its model card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowzoo.agents.evaluation.evaluate import evaluate
from flowzoo.agents.policy import Sampling
from flowzoo.agents.policy_map import PolicyMap
from flowzoo.agents.problems import distinct_problems
from flowzoo.envs import make_workflow
from tools.pocket.recipes import Recipe, option_words

COLUMNS = ("workflow", "decoding", "accuracy", "role", "readable", "own job", "tokens")

_CARD = r"""---
license: apache-2.0
library_name: transformers
---
# flowzoo pocket model: {name}

A Qwen3 of {parameters:,} parameters (bfloat16, vocabulary of {vocab}) that
{about}
It is mediocre on purpose, as a starting point for reinforcement learning on a laptop's CPU: most of
what training gains at first comes from unlearning that habit. The model knows no language and is of
no use outside flowzoo.

Made from nothing by

    {command}

in {seconds:.0f} s, {cpu_seconds:.0f} s of them CPU time of its process, with {threads} CPU
thread(s) (torch {torch}, transformers {transformers}). The training
data are transcripts of scripted experts on the `pretrain` split of the generated
problems, {variants}; no problem of the splits `train`, `validation` and `test` is among
them.
The same command on one machine with the same number of threads gives the same files.

{figures}
"""

_MEASURED = """Measured on {problems} distinct problems of the `validation` split with
{options}.
Readable: replies that the strict parser reads. Own job: how often the role itself was
right, whatever the team's outcome. Tokens: mean length of a reply.

{table}"""


@dataclass(frozen=True, slots=True)
class PocketScores:
    """Scores of a model: one summary (`agents/evaluation/summary`) per workflow and decoding."""

    problems: int
    options: str
    """Options of the task, as NAME=VALUE; empty for its defaults."""
    summaries: Mapping[tuple[str, str], Mapping[str, Any]]
    """(workflow with its options, `sampled` or `greedy`) -> summary."""

    def rows(self) -> list[tuple[str, ...]]:
        """Table rows under `COLUMNS`, one per workflow, decoding and role."""
        return [
            (
                workflow,
                decoding,
                f"{100 * summary['accuracy']:.1f} %",
                role,
                f"{100 * values['strict']:.1f} %",
                f"{100 * values['role_score']:.1f} %",
                f"{values['tokens']:.1f}",
            )
            for (workflow, decoding), summary in self.summaries.items()
            for role, values in summary["roles"].items()
        ]

    def table(self) -> str:
        """The rows in Markdown."""
        lines = [COLUMNS, ("---",) * len(COLUMNS), *self.rows()]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measure(folder: Path, recipe: Recipe, problems: int) -> PocketScores:
    """Scores of the model in `folder` on the first `problems` validation problems.

    Every workflow of the recipe is played once per problem at temperature 1, and one of them
    greedily, too: `single_v0` if it is among them.
    """
    from flowzoo.agents.hf.policy import TransformersPolicy

    summaries: dict[tuple[str, str], Mapping[str, Any]] = {}
    names = sorted(recipe.measured, key=lambda name: (name != "single_v0", name))
    for name, decoding in [(names[0], "greedy"), *((name, "sampled") for name in names)]:
        own = recipe.measured[name]
        workflow = make_workflow(name, recipe.task, **{**recipe.options, **own})
        policy = TransformersPolicy.from_pretrained(
            folder,
            dtype="float32",
            sampling=Sampling(
                temperature=float(decoding == "sampled"), max_tokens=recipe.max_tokens
            ),
        )
        held_out = distinct_problems(workflow.task, "validation", problems)
        policy_map = PolicyMap.shared(policy, workflow.role_counts())
        title = f"{name} {option_words(own)}".rstrip()
        summaries[title, decoding] = evaluate(workflow, policy_map, held_out)[1]
    return PocketScores(problems, option_words(recipe.options), summaries)


def model_card(
    recipe: Recipe,
    name: str,
    figures: PocketScores | None,
    command: str,
    parameters: int,
    vocab: int,
    seconds: float,
    cpu_seconds: float,
) -> str:
    """The README of a model folder, in Markdown.

    Args:
        recipe: what it learned from.
        name: name of the model, with its scale.
        figures: what it scores; None if it was not measured.
        command: the command that makes the model.
        parameters: number of weights.
        vocab: size of the vocabulary.
        seconds: how long the making took.
        cpu_seconds: how long its process worked in that time.
    """
    import torch
    import transformers

    measured = "Not measured."
    if figures is not None:
        options = f"`{figures.options}`" if figures.options else "the task's defaults"
        measured = _MEASURED.format(
            problems=figures.problems, options=options, table=figures.table()
        )
    return _CARD.format(
        name=name,
        about=recipe.about,
        variants=recipe.problems,
        parameters=parameters,
        vocab=vocab,
        command=command,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        transformers=transformers.__version__,
        figures=measured,
    )
