"""A trainer that notes the rows that its learners get."""

from collections.abc import Sequence

from flowzoo.aliases import MetricRow
from flowzoo.baselines.training.build import OpenRun
from flowzoo.baselines.training.trainer import Trainer
from flowzoo.envs import Call


class Recorder(Trainer):
    """Notes step, policy, call and advantage of every row."""

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run)
        self.learned: list[tuple[int, str, Call, float]] = []

    def update(
        self, step: int, policy: str, calls: Sequence[Call], advantages: Sequence[float]
    ) -> MetricRow:
        rows = zip(calls, advantages, strict=True)
        self.learned += [(step, policy, call, advantage) for call, advantage in rows]
        return super().update(step, policy, calls, advantages)
