"""Settings that may be put back in a run: its settings that differ from its automatic ones."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from flowzoo.agents.evaluation.protocol import problem_set
from flowzoo.agents.problems import distinct_problems
from flowzoo.baselines.diagnostics.cliff import EARLIEST
from flowzoo.baselines.run.directory import earlier_run
from flowzoo.baselines.run.reading import RunData
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.file import from_table
from flowzoo.baselines.settings.options import EvaluationOptions, ProcessOptions, ScaleOptions
from flowzoo.baselines.training.plan import RunPlan, resolve
from flowzoo.baselines.why.words import FUNCTIONS
from flowzoo.errors import FlowzooError, UsageError
from flowzoo.permission import PERMISSION
from flowzoo.provenance import describe_run

KINDS = (EvaluationOptions, ProcessOptions, ScaleOptions)
GROUNDS = {
    *(field.name for kind in KINDS for field in fields(kind)),
    "workflow", "task", "env", "program", "sandbox", "max_calls", "judge", "model", "models",
    "steps", "token_budget", "stop_at", "on_collapse", "stop_patience",
}  # fmt: skip
"""Settings that say what is learned, for how long, where, and how it is measured."""


class Unit(NamedTuple):
    """A setting, or one of the words of a setting, as a run was given it."""

    setting: str
    value: Any

    def __str__(self) -> str:
        value = self.value
        text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        return f"--{self.setting.replace('_', '-')} {text}"


@dataclass(frozen=True, slots=True)
class ReversibleRun:
    """A run to explain."""

    run: RunData
    grounds: Mapping[str, Any]
    """Settings that every rerun keeps."""
    units: Sequence[Unit]
    """Settings that may be put back, the user's functions first."""

    def join_grounds(self, subset: Iterable[Unit]) -> dict[str, Any]:
        """The grounds with some units added, the words of one setting in their order."""
        table, members = dict(self.grounds), set(subset)
        for unit in self.units:
            if unit not in members:
                continue
            table_value = unit.value
            if isinstance(self.run.settings[unit.setting], list):
                parts = unit.value if isinstance(unit.value, tuple) else (unit.value,)
                table_value = [*table.get(unit.setting, []), *parts]
            table[unit.setting] = table_value
        return table

    def config(self, subset: Iterable[Unit], seed: int, out: str = "") -> TrainConfig:
        """Settings of the rerun that keeps some units and leaves out the others."""
        config = from_table(self.join_grounds(subset), "the settings of the run")
        return replace(config, seed=seed, out=out)

    def plan(self, subset: Iterable[Unit]) -> RunPlan | None:
        """The plan of a rerun; None if it would be refused or measured on other problems."""
        try:
            plan = resolve(self.config(subset, self.run.settings["seed"]))
            return plan if held_out(plan) == self.run.problem_set else None
        except FlowzooError:
            return None


def held_out(plan: RunPlan) -> str:
    """Identity of the held-out problems of a plan."""
    config = plan.config
    problems = distinct_problems(
        plan.workflow.task, config.eval_split, config.eval_problems, option="--eval-problems"
    )
    return problem_set(problems)


def open_case(run: RunData) -> ReversibleRun:
    """Find what may be put back in a finished run.

    Raises:
        UsageError: it has not ended, has too few evaluations, or cannot be repeated here.
    """
    where = str(run.folder)
    if run.summary is None:
        raise UsageError(f"{where} has not ended: wait for it, or repeat its command to resume it")
    _check_same_tools(run)
    earlier = earlier_run(run.folder)
    for model in earlier.models.values() if earlier else ():
        model.check(f"the run in {where}")
    if len(run.steps) < EARLIEST:
        raise UsageError(
            f"{where} has fewer than {EARLIEST} evaluations, which show no fall: train it again "
            "with --eval-every 1"
        )
    PERMISSION.note(f"{where}/run.json", run.settings)
    given = _record_differences(run.settings)
    given.pop("alert", None)  # no rerun is news
    grounds = {k: v for k, v in given.items() if k in GROUNDS and k not in ("out", "seed")}
    units = [unit for name, value in given.items() if name not in GROUNDS
             for unit in _split(name, value)]  # fmt: skip
    units.sort(key=lambda unit: (unit.setting not in FUNCTIONS, unit.setting))
    case = ReversibleRun(run, grounds, units)
    plan = resolve(case.config(units, run.settings["seed"]))
    changed = [
        name
        for name, digest in {**plan.hooks.record(), **plan.workflow.functions}.items()
        if run.provenance.get("hooks", {}).get(name) != digest
    ]
    if plan.workflow.prompts_id != run.summary.get("protocol", {}).get("prompts"):
        changed.append("text of a prompt")
    if changed:
        raise UsageError(
            f"the {changed[0]} has changed since {where} was trained: restore its file, or train "
            "the run again with the present one"
        )
    case = replace(case, units=[unit for unit in units if _counts(case, unit, plan)])
    return _with_grounds(case)


def _check_same_tools(run: RunData) -> None:
    now = describe_run()
    for name in ("versions", "machine"):
        before, after = run.provenance.get(name), now.get(name)
        if before is not None and before != after:
            raise UsageError(
                f"{run.folder} was trained with other versions or on another machine ({before} "
                f"and now {after}), so reruns cannot be compared with it: train it again here, "
                "and explain that run"
            )


def _record_differences(settings: Mapping[str, Any]) -> dict[str, Any]:
    # Automatic values, which the record has too, turn out to change nothing by `_counts`.
    usual = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(TrainConfig()).items()
    }
    return {k: settings[k] for k in usual if k in settings and usual[k] != settings[k]}


def _split(name: str, value: Any) -> list[Unit]:
    if isinstance(value, list) and value and name != "sharing" and isinstance(value[0], str):
        return [Unit(name, word) for word in value]
    return [Unit(name, tuple(value) if isinstance(value, list) else value)]


def _counts(case: ReversibleRun, unit: Unit, plan: RunPlan) -> bool:
    """True if the run would have other settings without a unit, or would be refused."""
    try:
        config = case.config([other for other in case.units if other != unit], plan.config.seed)
        return resolve(config).config != plan.config
    except FlowzooError:
        return True


def _with_grounds(case: ReversibleRun) -> ReversibleRun:
    """Move units without which no rerun would be like the run to its grounds."""
    fixed = list(case.units) if case.plan(()) is None else []
    for unit in list(fixed) * 2:  # one may depend on another that comes later
        if unit in fixed and case.plan([other for other in fixed if other != unit]) is not None:
            fixed.remove(unit)
    units = [unit for unit in case.units if unit not in fixed]
    return replace(case, grounds=case.join_grounds(fixed), units=units)
