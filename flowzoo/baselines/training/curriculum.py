"""A curriculum: settings of the task that change as training goes on, e.g. its level."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from flowzoo.envs import Workflow
from flowzoo.envs.settings import Setting, read_settings
from flowzoo.errors import UsageError, unknown


@dataclass(frozen=True, slots=True)
class Stage:
    """A setting that holds from a step on."""

    step: int
    name: str
    value: Setting


def read_stages(arguments: Sequence[str]) -> tuple[Stage, ...]:
    """Read `STEP:NAME=VALUE` words."""
    stages: list[Stage] = []
    for word in arguments:
        step, colon, setting = word.partition(":")
        if not (colon and step.isascii() and step.isdigit() and int(step) >= 1):
            raise UsageError(
                f"a curriculum is given as STEP:NAME=VALUE with steps from 1, e.g. 50:level=2, "
                f"got {word!r}"
            )
        ((name, value),) = read_settings([setting]).items()
        stages.append(Stage(int(step), name, value))
    steps = [stage.step for stage in stages]
    if steps != sorted(steps):
        raise UsageError(f"the steps of a curriculum must be in order, got {steps}")
    return tuple(stages)


class Curriculum:
    """Workflows by step."""

    def __init__(self, workflow: Workflow, stages: Sequence[Stage]) -> None:
        self._from: list[tuple[int, Workflow]] = [(0, workflow)]
        self._stages = tuple(stages)
        task: Any = workflow.task
        if stages and getattr(task, "data", None) is not None:
            raise UsageError(
                "a curriculum changes how problems are generated, and these come from a file: "
                "leave out `curriculum`, or choose problems by pass rate (`flowzoo filter`)"
            )
        names = {field.name for field in fields(task) if field.init}
        for stage in stages:
            if stage.name not in names:
                raise unknown(f"setting of task {task.name!r}", stage.name, names)
            # Every stage is made at once, so that a wrong setting shows before the first step.
            task = replace(task, **{stage.name: stage.value})
            self._from.append((stage.step, replace(workflow, task=task)))

    def at(self, step: int) -> Workflow:
        """Return the workflow of `step`."""
        return self._from[self.stage(step)][1]

    def stage(self, step: int) -> int:
        """Number of stages that have begun by `step`."""
        return sum(start <= step for start, _ in self._from[1:])

    def metrics(self, step: int) -> dict[str, float]:
        """`curriculum/stage`, and `curriculum/NAME` for settings that are numbers."""
        if not self._stages:
            return {}
        row = {"curriculum/stage": float(self.stage(step))}
        for stage in self._stages[: self.stage(step)]:
            number = isinstance(stage.value, (int, float)) and not isinstance(stage.value, bool)
            row.pop(f"curriculum/{stage.name}", None)
            if number:
                row[f"curriculum/{stage.name}"] = float(stage.value)  # type: ignore[arg-type]
        return row
