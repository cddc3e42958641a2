"""Grading in another process of a run: its task, built from settings, without models."""

from collections.abc import Mapping, Sequence
from typing import Any

from flowzoo.baselines.backends.backend import RolloutSpec
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.preflight import with_prompts
from flowzoo.baselines.training.curriculum import Curriculum, read_stages
from flowzoo.envs.episode.effects import PendingEffect, resolve
from flowzoo.envs.script import EffectResult
from flowzoo.waits import LIMITS


class RunGrader:
    """Resolves the effects of a `RolloutSpec`'s scripts; see `Grader`."""

    def __init__(self, config: TrainConfig) -> None:
        LIMITS.put(config.wait_limit, config.function_limit)
        self._workflow = with_prompts(config)[0]
        self._curriculum = Curriculum(self._workflow, read_stages(config.curriculum))

    def grading(self) -> Mapping[str, Any]:
        """Versions of what grades answers here."""
        return self._workflow.grading()

    def resolve(self, plan: RolloutSpec, effects: Sequence[PendingEffect]) -> list[EffectResult]:
        """Resolve `effects`, in their order."""
        train = plan.mode == "train"
        played = self._curriculum.at(plan.step) if train else self._workflow
        return resolve(played.task, effects)
