"""The backend that the settings name."""

from __future__ import annotations

from collections.abc import Sequence

from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.local import LocalRunBackend
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.learner_groups import LearnerGroupPlan


def open_backend(
    config: TrainConfig,
    player: str = "",
    learners: str = "",
    grader: str = "",
    learner_groups: Sequence[LearnerGroupPlan] = (),
) -> RunBackend:
    """The backend of this process; it never becomes another one by itself.

    Args:
        config: the settings of a run.
        player: `module:function` that makes of these settings what plays in another process.
        learners: the same of the learners.
        grader: the same of what grades.
        learner groups: who learns together in other processes.

    Raises:
        UsageError: it cannot be had here.
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
