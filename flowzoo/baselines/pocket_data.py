"""What the pocket models learn from: transcripts of the workflows, played by scripted experts.

The experts fill the episodes: each reply is right or wrong with the chance drawn for its episode,
so that aggregators, evaluators and synthesizers see good and bad team-mates. What is learned is
never the played reply but what the expert says when it does its job rightly. Only the `pretrain`
split is used; it shares no problem with `train`, `validation` or `test`.

Hasty experts give many solutions at a glance, without their working, and problems without a minus
sign more often than others. Such answers are right in the transcripts, but a model of this size
cannot learn to find them: the habit makes it mediocre, and unlearning it is what reinforcement
learning does first. (A model that merely stopped early, without the habit, started from the same
accuracy and gained 6 points in 60 steps of GRPO with 32 problems of 8 samples in single_v0; with
the habit 40 points came within 10 steps of half that size.)
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice

from flowzoo.agents.roster import role_of
from flowzoo.envs import Episode, Message, Problem, Workflow, make_workflow
from flowzoo.envs.effects import resolve
from flowzoo.envs.tasks.math_levels import LEVELS
from flowzoo.seeding import key_rng

SPLIT = "pretrain"
SOLVERS = ("generator", "worker", "synthesizer", "aggregator")
"""Roles whose replies are solutions."""
HASTE = (0.65, 0.35)
"""Share of solutions given at a glance: problems without a minus sign, and with one."""


@dataclass(frozen=True, slots=True)
class Example:
    """A chat and the reply to learn."""

    role: str
    """`workflow/role`, e.g. `voting_v0/aggregator`."""
    messages: tuple[Message, ...]
    reply: str


@dataclass(frozen=True, slots=True)
class Source:
    """A workflow with its options, and how often it is played beside the others."""

    workflow: str
    share: float
    preset: str = "strict"


SOURCES = (
    Source("single_v0", 100),
    Source("voting_v0", 15),
    Source("eval_opt_v0", 20),
    Source("eval_opt_v0", 3, preset="paper"),
    Source("orch_workers_v0", 12),
)
"""What the transcripts are made of. Mostly lone generators: their short rows teach the arithmetic
that all roles need, while formats take few examples."""


def haste(role: str, messages: Sequence[Message], problem: Problem) -> float:
    """Chance that a reply is given at a glance; who was told to try again always works it out."""
    if role not in SOLVERS or len(messages) > 1:
        return 0.0
    return HASTE[1] if "-" in problem.text else HASTE[0]


def at_a_glance(reply: str) -> str:
    """The final box alone."""
    return reply[reply.rfind("\\boxed") :]


def respond(
    workflow: Workflow,
    role: str,
    messages: list[Message],
    problem: Problem,
    rng: random.Random,
    right: bool,
    hasty: bool,
) -> str:
    """The scripted expert's reply or, if it is a hasty one, perhaps its final box alone."""
    reply = workflow.expert(role, messages, problem, rng, right)
    glance = rng.random() < haste(role, messages, problem)
    return at_a_glance(reply) if glance and hasty else reply


def play(workflow: Workflow, index: int, rng: random.Random, hasty: bool = False) -> list[Example]:
    """One example per distinct prompt of an episode on pretraining problem `index`.

    Each team-mate's reply is right with a chance drawn from [0, 1] for the episode; `hasty`
    experts give some solutions at a glance.
    """
    problem = workflow.task.problem(index, SPLIT)
    episode = Episode(workflow, problem)
    skill = rng.random()
    found: dict[str, Example] = {}
    while not episode.done:
        if episode.effects:
            episode.resolve(resolve(workflow.task, [(problem, job) for job in episode.effects]))
            continue
        for turn in episode.waiting:
            role = role_of(turn.agent)
            best, played = (
                respond(workflow, role, turn.messages, problem, rng, right, hasty)
                for right in (True, rng.random() < skill)
            )
            example = Example(f"{workflow.name}/{role}", tuple(turn.messages), best)
            found.setdefault(str(turn.messages), example)
            episode.reply(turn.agent, played)
    return list(found.values())


def transcripts(
    shares: Sequence[float],
    seed: int,
    hasty: bool = False,
    sources: Sequence[Source] = SOURCES,
) -> Iterator[Example]:
    """Examples without end, from episodes whose workflow and level are drawn by their shares.

    Args:
        shares: weight of levels 1, 2, … (as many as given).
        seed: of problems, draws and experts.
        hasty: some solutions are given at a glance.
        sources: workflows with their shares.
    """
    makers = {
        (source, level): make_workflow(
            source.workflow, "math", preset=source.preset, level=level, seed=seed
        )
        for source in sources
        for level in range(1, len(shares) + 1)
    }
    weights = [source.share for source in sources]
    for index in count():
        rng = key_rng("pocket", seed, index)
        source = rng.choices(sources, weights)[0]
        level = rng.choices(range(1, len(shares) + 1), shares)[0]
        yield from play(makers[source, level], index, rng, hasty)


def tokenizer_corpus(examples: int, seed: int) -> Iterator[str]:
    """Pieces of text as they stand between special tokens, over all levels and workflows."""
    for example in islice(transcripts([1.0] * len(LEVELS), seed), examples):
        for message in example.messages:
            yield f"{message['role']}\n{message['content']}"
        yield "assistant\n"
        yield example.reply
