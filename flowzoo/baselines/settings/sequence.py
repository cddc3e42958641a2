"""Longest sequence that the settings allow."""

from __future__ import annotations

from flowzoo.baselines.settings.config import TrainConfig

_FEWEST = 1024
"""Tokens that an engine always holds, enough for the prompts that prove a sync."""


def longest_sequence(config: TrainConfig) -> int:
    """Most tokens of prompt and reply, where the settings bound them for all roles alike; else 0.

    Where it is 0 the model's own limit holds.
    """
    if not config.max_prompt or config.lengths or config.max_tokens is None:
        return 0
    return max(config.max_prompt + config.max_tokens, _FEWEST)
