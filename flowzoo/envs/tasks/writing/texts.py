"""Generated sources for the writing task: posts to be summarised, abstracts to be expanded.

A source is a frame with its gaps filled; the same fillings complete two model texts by the two
writers. Fillings are drawn by key, and a frame with its fillings is one instance.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from flowzoo.envs.tasks.writing.abstracts import ABSTRACTS
from flowzoo.envs.tasks.writing.posts import POSTS
from flowzoo.envs.tasks.writing.templates import TextTemplate
from flowzoo.reward.text.writing import Form

TEMPLATES: Mapping[Form, tuple[TextTemplate, ...]] = {"tldr": POSTS, "expansion": ABSTRACTS}


class WritingDraft(NamedTuple):
    """A source and a model pair about it."""

    source: str
    first: str
    second: str


def draw(form: Form, rng: random.Random) -> WritingDraft:
    """A frame of `form` with its gaps filled."""
    frame = rng.choice(TEMPLATES[form])
    filling = {gap: rng.choice(choices) for gap, choices in frame.gaps.items()}
    texts = (text.format(**filling) for text in (frame.source, frame.first, frame.second))
    return WritingDraft(*(text[0].upper() + text[1:] for text in texts))
