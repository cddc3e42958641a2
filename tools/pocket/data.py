"""What the pocket models learn from: transcripts of the workflows, played by scripted experts.

The experts fill the episodes: each reply is right or wrong with the chance drawn for its episode,
so that aggregators, evaluators and synthesizers see good and bad team-mates. What is learned is
never the played reply but what the expert says when it does its job rightly. Only the `pretrain`
split is used; it shares no problem with `train`, `validation` or `test`.

Hasty experts have a bad habit besides, which makes the model mediocre: unlearning it is what
reinforcement learning does first. Which workflows are played, on which problems, and what the habit
is, stands in the task's recipe (`pocket_recipes`).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice, product

from flowzoo.agents.policy_map import role_of
from flowzoo.envs import Episode, Message, Workflow, make_workflow
from flowzoo.envs.episode.effects import PendingEffect, resolve
from flowzoo.envs.script import EffectResult
from flowzoo.envs.tasks import Task
from flowzoo.seeding import key_int, key_rng
from tools.pocket.recipes import Recipe

SPLIT = "pretrain"
TOGETHER = 256
"""Episodes that are played at a time."""


@dataclass(frozen=True, slots=True)
class Example:
    """A chat and the reply to learn."""

    role: str
    """`workflow/role`, e.g. `voting_v0/aggregator`."""
    messages: tuple[Message, ...]
    reply: str


ExamplePlay = Generator[list[PendingEffect], list[EffectResult], list[Example]]
"""An episode being played: yields the work to be done outside, returns its examples."""


def play_examples(
    workflow: Workflow, index: int, rng: random.Random, recipe: Recipe, hasty: bool
) -> ExamplePlay:
    """One example per distinct prompt of an episode on pretraining problem `index`.

    Each team-mate's reply is right with a chance drawn for the episode from the recipe's
    `least_skill` to 1; `hasty` experts have the recipe's habit.
    """
    problem = workflow.task.problem(index, SPLIT)
    episode = Episode(workflow, problem)
    skill = recipe.least_skill + (1 - recipe.least_skill) * rng.random()
    found: dict[str, Example] = {}
    while not episode.done:
        if episode.effects:
            episode.resolve((yield [(problem, job) for job in episode.effects]))
            continue
        for turn in episode.waiting:
            role = role_of(turn.agent)
            best, spoken = (
                recipe.respond(workflow, role, turn.messages, problem, rng, right, hasty)
                for right in (True, rng.random() < skill)
            )
            example = Example(f"{workflow.name}/{role}", tuple(turn.messages), best)
            found.setdefault(str(turn.messages), example)
            episode.reply(turn.agent, spoken)
    return list(found.values())


def play_batched(task: Task, episodes: Sequence[ExamplePlay]) -> list[list[Example]]:
    """The examples of each episode; what they need done is done in batches over all of them.

    Programs run in the sandbox many at a time; one by one they would take most of the making.
    """
    examples: list[list[Example]] = [[] for _ in episodes]
    answers: dict[int, list[EffectResult] | None] = dict.fromkeys(range(len(episodes)))
    while answers:
        jobs: dict[int, list[PendingEffect]] = {}
        for place, results in answers.items():
            try:
                jobs[place] = episodes[place].send(results)  # type: ignore[arg-type] # None starts
            except StopIteration as stop:
                examples[place] = stop.value
        results = iter(resolve(task, [job for batch in jobs.values() for job in batch]))
        answers = {place: list(islice(results, len(batch))) for place, batch in jobs.items()}
    return examples


def transcripts(recipe: Recipe, seed: int, hasty: bool = False) -> Iterator[Example]:
    """Examples without end, from episodes whose workflow and variant are drawn by their shares.

    Args:
        recipe: the task, its variants and workflows.
        seed: of problems, draws and experts.
        hasty: the experts have the recipe's habit.
    """
    kinds = [range(len(recipe.sources)), range(len(recipe.variants))]
    shares = [[one.share for one in recipe.sources], [one.share for one in recipe.variants]]
    makers: dict[tuple[int, ...], Workflow] = {}
    for start in count(step=TOGETHER):
        every = recipe.world_episodes
        if not makers or (every and start % every == 0):
            world = key_int("pocket world", seed, start) if every else seed
            makers = {cell: _workflow(recipe, world, *cell) for cell in product(*kinds)}
        drawn: list[tuple[int, ExamplePlay]] = []
        for index in range(start, start + TOGETHER):
            rng = key_rng("pocket", seed, index)
            cell = tuple(rng.choices(*pair)[0] for pair in zip(kinds, shares, strict=True))
            drawn.append((cell[1], play_examples(makers[cell], index, rng, recipe, hasty)))
        found: dict[int, list[Example]] = {}
        for variant in kinds[1]:  # one batch per task: a task grades its own variant
            places = [place for place, (own, _) in enumerate(drawn) if own == variant]
            batch = play_batched(makers[0, variant].task, [drawn[place][1] for place in places])
            found |= zip(places, batch, strict=True)
        for place in range(TOGETHER):
            yield from found[place]


def _workflow(recipe: Recipe, seed: int, source: int, variant: int) -> Workflow:
    chosen = recipe.sources[source]
    options = {**recipe.variants[variant].options, **chosen.options}
    return make_workflow(chosen.workflow, recipe.task, preset=chosen.preset, seed=seed, **options)


def tokenizer_corpus(recipe: Recipe, examples: int, seed: int) -> Iterator[str]:
    """Pieces of text as they stand between special tokens, over the vocabulary's variants."""
    for example in islice(transcripts(recipe.for_vocabulary(), seed), examples):
        for message in example.messages:
            yield f"{message['role']}\n{message['content']}"
        yield "assistant\n"
        yield example.reply
