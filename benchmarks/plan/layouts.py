"""Layouts that a number of GPUs allows, with their memory."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.plan.models import ModelFolders, files_bytes
from flowzoo.agents.vllm.settings import BYTES
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.learner_groups import LearnerGroupPlan, plan_learner_groups
from flowzoo.baselines.settings.rules import check, sharding_rules
from flowzoo.baselines.sizing.layouts import Layout, RunSizes, Training, Where
from flowzoo.baselines.sizing.source import place_run
from flowzoo.errors import UsageError


class PlanSizes(RunSizes):
    """Sizes of a run whose models may be shapes alone, in all layouts."""

    def __init__(self, config: TrainConfig) -> None:
        with tempfile.TemporaryDirectory() as room:
            folders = ModelFolders(Path(room))
            super().__init__(config, place_run(config, folders.find))
            self.files: Mapping[str, int] = {
                model: files_bytes(folder) for model, folder in folders.paths.items()
            }
        self.lent: set[str] = folders.lent if config.max_tokens is None else set()
        """Models without a tokenizer, which are taken not to think."""
        self.learner_groups = plan_learner_groups(config, self.models)
        self.learner_gpus = config.learner_gpus

    def without_role_gradients(self) -> PlanSizes:
        """The same run, which keeps no gradient of each role."""
        sizes = copy.copy(self)
        learners = {
            name: replace(config, role_gradients=False)
            for name, config in self.plan.learners.items()
        }
        sizes.plan = replace(self.plan, learners=learners)
        return sizes

    @property
    def unsharded(self) -> str:
        """Reason why a run refuses `shard` full with these settings, or empty."""
        try:
            check(sharding_rules(self.config))
        except UsageError as error:
            return str(error)
        return ""

    def learner_group(self, group: LearnerGroupPlan) -> int:
        """Bytes of the learners of a learner group on the GPU of each of its workers."""
        return sum(self.together(self.training, group.workers, self.asked.shard, group.policies))

    def layouts(self, gpus: int, bytes_each: int) -> list[Layout]:
        """List the layouts that `gpus` GPUs of `bytes_each` bytes allow."""
        kinds: tuple[Training, ...] = ("full", "lora")
        return [
            self.layout(training, ranks, shard, gpus, bytes_each)
            for training in kinds
            for ranks in self._ranks(gpus)
            for shard in (("none", "full") if ranks > 1 else ("none",))
        ]

    def _ranks(self, gpus: int) -> list[int]:
        powers = {2**power for power in range(gpus.bit_length())}
        return sorted(count for count in powers | {gpus, self.asked.ranks or 1} if count <= gpus)

    def sync_bytes(self, policy: str) -> dict[Training, int]:
        """Bytes that go to an engine after an update of a policy; a tied head goes twice."""
        shape = self.shape(policy)
        sent = shape.parameters + shape.head * shape.tied
        size = 2 if self.config.weights == "bfloat16" else 4
        if self.config.placement == "split":
            size = BYTES[self.config.settled_dtype]
        return {"full": sent * size, "lora": shape.adapter(self.rank) * 4}


def layout_fits(layout: Layout, where: Where, room: int) -> bool | None:
    """True if GPUs of which `room` bytes may be used hold a layout; None: not known."""
    if layout.needs[where] > room:
        return False
    return True if layout.counted else None
