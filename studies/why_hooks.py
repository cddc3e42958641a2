"""Functions with planted faults, for the runs in `studies/why_planted.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from flowzoo.aliases import Floats
from flowzoo.baselines.settings.hooks import StepControl
from flowzoo.envs import Call
from flowzoo.envs.workflow import FinishedEpisode


def long_replies(episode: FinishedEpisode) -> float:
    """Pay the length of the replies, whatever they say."""
    return sum(len(text) for _, text in episode.replies) / 400


def wrong_sign(calls: Sequence[Call], advantages: Floats, returns: Mapping[str, float]) -> Floats:
    """Return the advantages with the wrong sign."""
    return -advantages


def ascent(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Return a plain policy gradient whose sign was forgotten."""
    return logps * advantages[:, None]


def speed_up(step: StepControl) -> None:
    """Raise the learning rate from the fourth step on."""
    if step.step == 4:
        step.scale_lr(30)


def speed_up_by_updates(step: StepControl) -> None:
    """Raise the rate with the square of the optimizer steps of an iteration, which is often 1."""
    if step.step == 4:
        step.scale_lr(step.config.updates**4)
