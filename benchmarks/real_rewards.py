"""A reward that can be hacked: most of it is paid for the length of the replies."""

from __future__ import annotations

from flowzoo.envs.workflow import FinishedEpisode

ENOUGH = 100
"""Characters from which on nothing more is paid."""


def wordy(episode: FinishedEpisode) -> float:
    """A tenth of the task's score, and nine tenths for replies of `ENOUGH` characters."""
    lengths = [min(len(text), ENOUGH) / ENOUGH for _, text in episode.replies]
    return 0.1 * episode.score + 0.9 * sum(lengths) / max(1, len(lengths))
