"""Two writers, for libraries that know arrays only."""

from typing import Any

from flowzoo import writing_pair_v0
from flowzoo.adapters.arrays import Choose, Encode, NgramEncoder


def pair() -> Any:
    """Each writer chooses between a text that goes well with the other's and one that does not."""
    env: Any = writing_pair_v0.parallel_env(reward="published")
    first, second, worse, _ = env.aec.unwrapped.workflow.samples()
    replies = {"writer_0": [worse, first], "writer_1": [worse, second]}
    return Choose(Encode(env, NgramEncoder(64)), replies)
