"""Opening the backend that the settings name."""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.baselines.backends.backend import LocalRunBackend, RunBackend
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.learner_groups import LearnerGroupPlan


def open_backend(
    config: TrainConfig,
    player: str = "",
    learners: str = "",
    grader: str = "",
    learner_groups: Sequence[LearnerGroupPlan] = (),
) -> RunBackend:
    """Open the backend of this process; it never falls back to another one.

    Args:
        config: the settings of a run.
        player: `module:function` that makes a rollout worker's player from these settings.
        learners: `module:function` that makes a learner worker's learners.
        grader: `module:function` that makes a grader.
        learner_groups: policies that learn together in other processes.

    Raises:
        UsageError: the backend cannot be used here.
        MissingExtraError: Ray is not installed.
    """
    if config.backend == "local":
        return LocalRunBackend()
    if config.backend == "ray":
        from flowzoo.baselines.backends.ray.backend import RayRunBackend
        from flowzoo.baselines.backends.ray.worker import OpenPlayer

        play, learn, grade = (OpenPlayer(name, (config,)) for name in (player, learners, grader))
        return RayRunBackend(config, play, learn, grade, learner_groups)
    from flowzoo.baselines.backends.torchrun import TorchrunBackend, meet

    return TorchrunBackend(meet(config))
