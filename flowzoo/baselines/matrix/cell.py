"""A cell of a matrix: one configuration, run once for every seed; controls among cells."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs.api.registry import workflow_class

# This file is below `parity` and `file`: reading a matrix file checks cells for equal budgets.
CONTROL = "single"  # the workflow of every control


def is_control(workflow: object) -> bool:
    """True if cells of the workflow of this name are controls in tables and reports."""
    return re.fullmatch(rf"{CONTROL}(_v\d+)?", str(workflow)) is not None


@dataclass(frozen=True, slots=True)
class Cell:
    """One configuration; `config` is that of the first seed, without a run directory."""

    name: str  # unique within the matrix, fit for a folder
    config: TrainConfig
    label: str = ""
    control: bool = False
    """True if it is trained at the tokens of the cells that it is compared with."""

    @property
    def task(self) -> str:
        """Name of the task; the workflow's default if the settings name none."""
        config = self.config
        return config.env or config.task or workflow_class(config.workflow).default_task

    def is_control_of(self, other: "Cell") -> bool:
        """True if this is a control and `other` a workflow that it is compared with."""
        if not self.control or is_control(other.config.workflow):
            return False
        return (self.task, self.config.model) == (other.task, other.config.model)

    def run(self, seed: int, out: Path) -> TrainConfig:
        """Settings of its run under `seed`, in a folder below `out`."""
        return replace(self.config, seed=seed, out=str(out / self.name / f"seed-{seed}"))


def cell_text(config: TrainConfig) -> str:
    """`config` as a TOML file for `flowzoo train --config`: the workflow, and no default values."""
    base = TrainConfig()
    values = {name: getattr(config, name) for name in sorted(TrainConfig.__dataclass_fields__)}
    return "".join(
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"  # its values are valid TOML
        for name, value in values.items()
        if name == "workflow" or value != getattr(base, name)
    )
