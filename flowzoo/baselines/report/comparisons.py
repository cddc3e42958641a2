"""Differences of two cells at equal budgets: a workflow and its single-agent control."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from flowzoo.agents.evaluation.majority import MATCHES
from flowzoo.aliases import Floats
from flowzoo.baselines.matrix.cell import is_control
from flowzoo.baselines.matrix.parity import budget_ratios, equal_tokens, training_cost
from flowzoo.baselines.report.cells import CellData, same_problems
from flowzoo.baselines.report.findings import Facts
from flowzoo.baselines.run.reading import RunData, run_label
from flowzoo.baselines.stats import paired_gain, welch
from flowzoo.errors import DataError
from flowzoo.files import read_json

MIN_SEEDS = 3  # seeds on each side below which no claim is made
_NOT_COMPARED = {"sharing", "seed", "out", "threads"}


def sharing_pairs(cells: Sequence[CellData]) -> list[tuple[CellData, CellData]]:
    """Pairs of a cell with shared and one with isolated policies that differ in nothing else."""

    def base_settings(cell: CellData) -> dict[str, object]:
        settings = cell.settings.items()
        return {k: v for k, v in settings if k not in _NOT_COMPARED and v is not None}

    return [
        (cell, other)
        for cell, other in product(cells, cells)
        if (cell.axis("sharing"), other.axis("sharing")) == ("shared", "isolated")
        and cell.runs and other.runs and base_settings(cell) == base_settings(other)
    ]  # fmt: skip


class Side(NamedTuple):
    """One side of a comparison."""

    name: str
    scores: Sequence[Floats]  # scores of every run, (items,)


def difference(first: Side, second: Side, *, paired: bool) -> Facts:
    """`second` minus `first`, with both kinds of interval; `paired`: the items are the same."""
    levels = [[float(scores.mean()) for scores in side.scores] for side in (first, second)]
    sizes = {len(scores) for side in (first, second) for scores in side.scores}
    paired = paired and len(sizes) == 1
    gain = None
    if paired:
        before, after = (np.mean(side.scores, axis=0).tolist() for side in (first, second))
        gain = paired_gain(before, after)
    low, high = welch(levels[0], levels[1])
    seeds = [len(first.scores), len(second.scores)]
    return {
        "one": first.name, "other": second.name, "paired": paired, "seeds": seeds,
        "levels": [float(np.mean(level)) for level in levels],
        "mean": float(np.mean(levels[1]) - np.mean(levels[0])),
        "items": None if gain is None else gain.n,
        "low": None if gain is None else gain.low, "high": None if gain is None else gain.high,
        "claim": claim(seeds, low, high), "seed_low": low, "seed_high": high,
    }  # fmt: skip


def claim(seeds: Sequence[int], low: float | None, high: float | None) -> str:
    """The claim that a difference allows, with its interval over seeds."""
    if min(seeds) < MIN_SEEDS or low is None or high is None:
        counts = " and ".join(str(count) for count in seeds)
        return f"no claim: {counts} seeds, fewer than {MIN_SEEDS}"
    if low > 0:
        return "higher"
    return "lower" if high < 0 else "cannot be told apart"


def against_controls(cells: Sequence[CellData]) -> list[Facts]:
    """Rows of a workflow's cell and every control of its task and model, one per equal budget."""
    # A workflow's last evaluation is compared with the control's first one after as many training
    # tokens or more, so that the control never has less, and with majority votes of the control's
    # last policy at equal inference. A control that never reached the tokens is compared at its
    # end.
    rows: list[Facts] = []
    for cell, control in product(cells, cells):
        same = all(cell.axis(axis) == control.axis(axis) for axis in ("task", "model"))
        pairs = by_seed(control, cell)
        kinds = [is_control(side.settings.get("workflow")) for side in (control, cell)]
        if kinds == [True, False] and same and pairs:
            rows.append(_at_equal_tokens(control, cell, pairs))
            rows += _at_equal_inference(control, cell, pairs)
    return rows


def _at_equal_tokens(
    control: CellData, cell: CellData, pairs: Sequence[tuple[RunData, RunData]]
) -> Facts:
    reached = [
        equal_tokens(single, run.evaluations[-1].get("tokens/total", np.inf))
        for single, run in pairs
    ]
    ends = [index for index in reached if index is not None]
    enough = len(ends) == len(pairs)
    ends = ends if enough else [-1] * len(pairs)
    runs = [(single, run, index) for (single, run), index in zip(pairs, ends, strict=True)]
    sides = (
        Side(control.name, [single.scores[index] for single, _, index in runs]),
        Side(cell.name, [run.scores[-1] for _, run in pairs]),
    )
    return {
        **difference(*sides, paired=same_problems(control, cell)),
        "equal": "training tokens" if enough else "nothing",
        "votes": None,
        "parity": budgets(runs),
    }


def _at_equal_inference(
    control: CellData, cell: CellData, pairs: Sequence[tuple[RunData, RunData]]
) -> list[Facts]:
    rows: list[Facts] = []
    files = {single.name: _votes(single) for single, _ in pairs}
    for match in MATCHES:
        voted = [
            (record["votes"][match], run.scores[-1])
            for single, run in pairs
            if (record := files[single.name].get(run_label(run.folder)))
            and match in record["votes"]
        ]
        if not voted:
            continue
        sides = (
            Side(control.name, [np.array(vote["scores"], np.float64) for vote, _ in voted]),
            Side(cell.name, [scores for _, scores in voted]),
        )
        compared = difference(*sides, paired=same_problems(control, cell))
        votes = float(np.mean([vote["k"] for vote, _ in voted]))
        rows.append({**compared, "equal": f"{match} of an answer", "votes": votes, "parity": None})
    return rows


def _votes(control: RunData) -> dict[str, Mapping[str, Any]]:
    records: dict[str, Mapping[str, Any]] = {}
    for path in sorted(control.folder.glob("like-*.json")):
        try:
            record = read_json(path)
            for vote in record["votes"].values():
                _ = vote["k"], vote["scores"]
            records[record["workflow"]["run"]] = record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{path} is not a record of a control at equal inference: {error}"
            ) from error
    return records


def by_seed(first: CellData, second: CellData) -> list[tuple[RunData, RunData]]:
    """The runs of two cells under the seeds that both have."""
    runs, others = (dict(zip(cell.seeds, cell.runs, strict=True)) for cell in (first, second))
    return [(run, others[seed]) for seed, run in runs.items() if seed in others]


def budgets(pairs: Sequence[tuple[RunData, RunData, int]]) -> Facts | None:
    """Tokens and optimizer steps per policy of two cells, means over `pairs`, and their ratios."""
    # A pair is a run of each cell and the index of the evaluation at which the first is compared;
    # the second is compared at its end.
    if not pairs:
        return None
    costs = [(training_cost(first, index), training_cost(second)) for first, second, index in pairs]
    ratios, flags = budget_ratios(costs)
    count = len(costs)
    return {
        "seeds": count,
        "tokens": [sum(cost[side].tokens for cost in costs) / count for side in (0, 1)],
        "updates": [sum(cost[side].updates for cost in costs) / count for side in (0, 1)],
        "ratios": ratios,
        "flags": flags,
    }


def compared_budgets(cells: Sequence[CellData], controls: Sequence[Facts]) -> list[Facts]:
    """Budgets of every two cells that are compared: names `one`, `other`, and `budgets`."""
    # Two cells that differ in the sharing of policies alone are compared, too.
    compared = [
        (shared.name, isolated.name, budgets([(*pair, -1) for pair in by_seed(shared, isolated)]))
        for shared, isolated in sharing_pairs(cells)
    ]
    compared += [(row["one"], row["other"], row["parity"]) for row in controls]
    return [{"one": first, "other": second, **costs} for first, second, costs in compared if costs]
