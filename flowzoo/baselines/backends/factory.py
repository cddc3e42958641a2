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
    """Open the backend of this process; it never falls back to another one."""
    # The parts that workers open are named `module:function`, which other processes can find.
    if config.backend == "local":
        return LocalRunBackend()
    if config.backend == "ray":
        from flowzoo.baselines.backends.ray.backend import RayRunBackend
        from flowzoo.baselines.backends.ray.worker import OpenPlayer

        play, learn, grade = (OpenPlayer(name, (config,)) for name in (player, learners, grader))
        return RayRunBackend(config, play, learn, grade, learner_groups)
    from flowzoo.baselines.backends.torchrun import TorchrunBackend, meet

    return TorchrunBackend(meet(config))
