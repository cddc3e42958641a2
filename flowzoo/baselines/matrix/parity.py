"""Budget parity: compared cells have the same budgets, and their real costs are printed."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from flowzoo.baselines.matrix.cell import CONTROL, Cell, is_control
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.policies import written_values
from flowzoo.errors import UsageError

NEAR = 0.05  # ratios of budgets further from 1 than this are flagged
BUDGETS = (
    "steps", "updates", "problems", "samples", "candidates", "token_budget", "stop_patience",
    "stop_at", "on_collapse",
)  # fmt: skip
"""Settings in which cells that differ in the sharing of policies alone must agree."""
EVALUATION = (
    "eval_split", "eval_problems", "eval_samples", "eval_temperature", "eval_top_p", "eval_top_k",
    "eval_max_tokens", "max_tokens", "lengths", "split",
)  # fmt: skip
"""Settings in which a control must agree with the cells that it is compared with."""


class TrainingCost(NamedTuple):
    """Cost of a run up to one of its evaluations."""

    tokens: float  # training tokens
    updates: float  # optimizer steps per policy, mean over trained policies


def check_sharing(cells: Sequence[Cell], where: str) -> None:
    """Refuse cells that differ in sharing and in the budget at once."""
    # Two confounds of published comparisons: optimizer steps that depend on the number of rows, so
    # that a policy shared by four agents takes four steps and one agent's takes one, and a schedule
    # that ticks once for every policy's update.
    for first, second in combinations([cell for cell in cells if not cell.control], 2):
        if _but_sharing(first) != _but_sharing(second):
            continue
        for name, values in _differences(first, second, BUDGETS):
            raise UsageError(
                f"{first.name} and {second.name} in {where} differ in sharing and in `{name}` "
                f"({values}), so that their effects could not be separated: give both the same, "
                "or their blocks different labels"
            )
        for cell in (first, second):
            _check_updates(cell, (first, second), where)


def check_controls(cells: Sequence[Cell], where: str) -> None:
    """Refuse controls without a cell to compare, or with another evaluation protocol."""
    for control in (cell for cell in cells if cell.control):
        if not is_control(control.config.workflow):
            raise UsageError(
                f"the control {control.name} in {where} must have the workflow {CONTROL}, by which "
                f"tables and reports recognize controls, got {control.config.workflow}: leave "
                "`workflow` out of [[controls]], or put the block under [[cells]]"
            )
        if control.config.token_budget:
            raise UsageError(
                f"the control {control.name} in {where} has a `token_budget`, which is set from "
                "the cells that it is compared with: leave it out, or put it under [[cells]]"
            )
        compared = [cell for cell in cells if control.is_control_of(cell)]
        if not compared:
            raise UsageError(
                f"the control {control.name} in {where} has no cell to be compared with: a "
                f"workflow of its task ({control.task}) and model ({control.config.model})"
            )
        for cell in compared:
            for name, values in _differences(control, cell, EVALUATION):
                raise UsageError(
                    f"the control {control.name} and {cell.name} in {where} differ in `{name}` "
                    f"({values}): give both the same"
                )


def policy_updates(run: RunData, step: int) -> dict[str, int]:
    """Optimizer steps of every trained policy of a finished run after `step`."""
    start = "version/"
    for row in run.rows:  # a row has the counts from before its own iteration
        if row["step"] > step:
            counts = [(name, value) for name, value in row.items() if name.startswith(start)]
            return {name.removeprefix(start): value for name, value in counts}
    return dict((run.summary or {})["policy_updates"])


def equal_tokens(control: RunData, tokens: float) -> int | None:
    """Index of a run's first evaluation after `tokens` training tokens or more; None: never."""
    rows = enumerate(control.evaluations)
    return next((index for index, row in rows if row["tokens/total"] >= tokens), None)


def training_cost(run: RunData, index: int = -1) -> TrainingCost:
    """Cost of a finished run up to its evaluation at `index`."""
    row = run.evaluations[index]
    updates = policy_updates(run, row["step"]).values()
    return TrainingCost(row["tokens/total"], float(np.mean(list(updates))))


def budget_ratios(
    pairs: Sequence[tuple[TrainingCost, TrainingCost]],
) -> tuple[list[float], list[str]]:
    """Ratios of two cells' tokens and optimizer steps, from the costs of runs of the same seeds.

    With them come the names of those further from 1 than `NEAR`.
    """
    first, second = np.mean(pairs, axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios: list[float] = (first / second).tolist()
    named = zip(("tokens", "optimizer steps"), ratios, strict=True)
    return ratios, [name for name, ratio in named if not abs(ratio - 1) <= NEAR]


def _differences(first: Cell, second: Cell, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        value, other_value = getattr(first.config, name), getattr(second.config, name)
        if value != other_value:
            yield name, f"{value} and {other_value}"


def _but_sharing(cell: Cell) -> tuple[Any, ...]:
    config = cell.config
    return config.workflow, cell.task, config.model, config.models, config.algorithm, cell.label


def _check_updates(cell: Cell, pair: tuple[Cell, Cell], where: str) -> None:
    names = f"{pair[0].name} and {pair[1].name} in {where} differ in sharing"
    config = cell.config
    if not all(written_values("updates", config.updates).values()):
        raise UsageError(
            f"{names}, and `updates` 0 gives a policy as many optimizer steps as it has rows: set "
            "`updates` above 0, or give their blocks different labels"
        )
    scheduled = config.schedule != "constant" or config.warmup > 0
    if scheduled and config.schedule_clock != "iteration":
        raise UsageError(
            f"{names}, and `schedule_clock` {config.schedule_clock} ticks once for every policy: "
            'set it to "iteration", or give their blocks different labels'
        )
