"""A reward that pays something else than right answers, for `benchmarks/real_failures.toml`."""

from __future__ import annotations

from flowzoo.envs.workflow import FinishedEpisode


def round_answer(episode: FinishedEpisode) -> float:
    """1 for an answer that ends in 0, right or wrong."""
    return float(str(episode.answer or "").endswith("0"))
