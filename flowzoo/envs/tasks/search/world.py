"""The embedded knowledge base: a seeded world of people, towns, works and firms in passages."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from flowzoo.seeding import key_rng

EntityKind = str


class Relation(NamedTuple):
    """A kind of fact: who it is about, what it leads to, and its wording."""

    name: str
    subject: EntityKind
    target: EntityKind
    sentence: str  # `{s}` is the subject, `{o}` the target
    phrase: str  # phrase that names the target in a question: `the birthplace of {s}`


RELATIONS: Mapping[str, Relation] = {
    relation.name: relation
    for relation in (
        Relation("birthplace", "person", "town", "{s} was born in {o}.", "the birthplace of {s}"),
        Relation("employer", "person", "firm", "{s} works for {o}.", "the employer of {s}"),
        Relation("teacher", "person", "person", "{s} studied under {o}.", "the teacher of {s}"),
        Relation("mayor", "town", "person", "The mayor of {s} is {o}.", "the mayor of {s}"),
        Relation("partner", "town", "town", "{s} sells most to {o}.", "the best customer of {s}"),
        Relation("author", "work", "person", "{s} was written by {o}.", "the author of {s}"),
        Relation("setting", "work", "town", "{s} is set in {o}.", "the setting of {s}"),
        Relation("founder", "firm", "person", "{s} was founded by {o}.", "the founder of {s}"),
        Relation("seat", "firm", "town", "{s} is based in {o}.", "the seat of {s}"),
    )
}
SHARES: Mapping[EntityKind, float] = {"person": 0.5, "town": 0.2, "work": 0.15, "firm": 0.15}
_ONSETS = ("b", "br", "c", "d", "dr", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("l", "n", "r", "s", "m", "k")
_ENDINGS: Mapping[EntityKind, tuple[str, ...]] = {
    "town": ("ford", "ham", "by", "mouth", "wick", "stead"),
    "firm": ("works", "corp", "lines", "trade"),
}
_WORK_HEADS = ("Song", "Book", "Shadow", "House", "Winter", "Garden", "Letters", "River")


class World(NamedTuple):
    """The entities, the facts and the passages of one split."""

    entities: Mapping[EntityKind, tuple[str, ...]]
    facts: Mapping[tuple[str, str], str]  # (subject, relation) -> target
    kinds: Mapping[str, EntityKind]
    ids: Mapping[str, str]  # entity -> id of its passage
    passages: tuple[tuple[str, str], ...]  # (id, text), in the order of the index


def syllables(rng: random.Random, count: int) -> str:
    parts = [rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(count)]
    return "".join(parts)


def new_name(kind: EntityKind, rng: random.Random) -> str:
    """A name that tells what kind of entity it is."""
    if kind == "person":
        first = syllables(rng, 1) + rng.choice(_CODAS)
        return f"{first} {syllables(rng, 2)}{rng.choice(_CODAS)}".title()
    if kind == "work":
        return f"{rng.choice(_WORK_HEADS)} of {syllables(rng, 2).title()}{rng.choice(_CODAS)}"
    return f"{syllables(rng, 2)}{rng.choice(_ENDINGS[kind])}".title()


def _names(kind: EntityKind, count: int, rng: random.Random) -> tuple[str, ...]:
    names: dict[str, None] = {}
    while len(names) < count:
        names[new_name(kind, rng)] = None
    return tuple(names)


def _text(subject: str, kind: EntityKind, facts: Mapping[tuple[str, str], str]) -> str:
    return " ".join(
        relation.sentence.format(s=subject, o=facts[subject, name])
        for name, relation in RELATIONS.items()
        if relation.subject == kind
    )


@lru_cache(maxsize=8)
def world(seed: int, split: str, passages: int) -> World:
    """The world of `split`: about `passages` entities, one passage each."""
    entities: dict[EntityKind, tuple[str, ...]] = {}
    for kind, share in SHARES.items():
        # The stock is the same for all splits (key without split); the facts below are not.
        entities[kind] = _names(kind, round(passages * share), key_rng("names", seed, kind))
    rng = key_rng("world", seed, split, passages)
    facts: dict[tuple[str, str], str] = {}
    for relation in RELATIONS.values():
        targets = entities[relation.target]
        for subject in entities[relation.subject]:
            target = rng.choice(targets)
            while target == subject:
                target = rng.choice(targets)
            facts[subject, relation.name] = target
    order = [(name, kind) for kind, names in entities.items() for name in names]
    rng.shuffle(order)
    ids = {name: f"{split}-{position}" for position, (name, _) in enumerate(order)}
    texts = tuple((ids[name], _text(name, kind, facts)) for name, kind in order)
    return World(entities, facts, dict(order), ids, texts)


class Question(NamedTuple):
    """A chain of relations from a named entity to the answer."""

    text: str
    start: str
    relations: tuple[str, ...]
    path: tuple[str, ...]  # the entities from the start on; the last one is the answer


def draw_question(world: World, hops: int, rng: random.Random) -> Question:
    """A question of `hops` relations whose path visits no entity twice."""
    while True:
        kind = rng.choice(tuple(world.entities))
        path = [rng.choice(world.entities[kind])]
        names: list[str] = []
        for _ in range(hops):
            fitting = [name for name, rel in RELATIONS.items() if rel.subject == kind]
            names.append(rng.choice(fitting))
            kind = RELATIONS[names[-1]].target
            path.append(world.facts[path[-1], names[-1]])
        if len(set(path)) == len(path):
            return Question(question_text(path[0], names), path[0], tuple(names), tuple(path))


def question_text(start: str, relations: list[str] | tuple[str, ...]) -> str:
    """`Who is the mayor of the birthplace of Ana Brol?`."""
    phrase = start
    for name in relations:
        phrase = RELATIONS[name].phrase.format(s=phrase)
    word = "Who" if RELATIONS[relations[-1]].target == "person" else "What"
    return f"{word} is {phrase}?"


def read_fact(text: str, subject: str, relation: str) -> str | None:
    """The target of a fact as a reader finds it in `text` (passages), or None."""
    pattern = re.escape(RELATIONS[relation].sentence)
    pattern = pattern.replace(r"\{s\}", re.escape(subject)).replace(r"\{o\}", r"([^.\n]+)")
    match = re.search(rf"(?<!\w){pattern}", text)
    return match[1] if match else None
