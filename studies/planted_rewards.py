"""Rewards that pay something else than right answers, for `studies/diagnosis.toml`."""

from __future__ import annotations

from flowzoo.envs.workflow import FinishedEpisode


def short_box(episode: FinishedEpisode) -> float:
    """1 for a box in the answer and replies of at most 40 characters, whatever the answer."""
    longest = max(len(text) for _, text in episode.replies)
    return float(episode.answer is not None and longest <= 40)


def long(episode: FinishedEpisode) -> float:
    """The mean length of the replies, 1 from 100 characters on."""
    return sum(min(len(text), 100) for _, text in episode.replies) / 100 / len(episode.replies)


def wrong_sign(episode: FinishedEpisode) -> float:
    """1 for wrong answers."""
    return 1.0 - episode.score


def agree(episode: FinishedEpisode) -> float:
    """1 if all replies of the episode are the same text."""
    return float(len({text for _, text in episode.replies}) == 1)


def reject(episode: FinishedEpisode) -> float:
    """The share of the evaluator's verdicts that say Incorrect."""
    verdicts = [
        "incorrect" in text.lower() for role, text in episode.replies if role == "evaluator"
    ]
    return sum(verdicts) / max(1, len(verdicts))


def round_answer(episode: FinishedEpisode) -> float:
    """1 for an answer that ends in 0, right or wrong."""
    return float(str(episode.answer or "").endswith("0"))
