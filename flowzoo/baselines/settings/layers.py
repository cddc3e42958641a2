"""Automatic values of settings, by layers.

A setting that the user leaves open, on the command line, in a file and in Python, has the value of
the first layer that has one: the run that is continued, the models, the defaults. What is left open
after that is the algorithm's (`flowzoo.baselines.settings.algorithms`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from flowzoo.baselines.settings.by_policy import by_policy, value_of, with_values
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import SHARD_JOBS
from flowzoo.errors import UsageError

AUTOMATIC: Mapping[str, Any] = {
    "prompts": None, "examples": None, "shard_jobs": None, "eval_every": 0, "checkpoint_every": 0,
    "schedule_steps": 0, "engine_dtype": "auto", "compute": None, "old_logp": None, "lr": None,
    "max_tokens": None, "eval_problems": None, "temperature": None, "top_p": None, "top_k": None,
}  # fmt: skip
"""Settings with an automatic value, by the value that leaves them open. The automatic value of one
may depend on those before it."""
GIVEN, EARLIER, ALGORITHM, DEFAULT = "the user", "the earlier run", "the algorithm", "the default"
"""Sources of values; `ModelLayer` has others."""
PLAIN: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Sampling from the model's own distribution."""
FEWEST_INTERVALS = 5
"""Least number of intervals between evaluations if `eval_every` is automatic."""


class LayerValue(NamedTuple):
    """Value of an open setting."""

    value: Any
    """By policy, of a setting that may differ between policies."""
    source: str


Layer = Callable[[str, TrainConfig, Sequence[str]], LayerValue | None]
"""Value of a setting of the present settings, for the policies whose value is open, if any."""


@dataclass(frozen=True, slots=True)
class LayeredConfig:
    """Settings, and the sources of the values that layers have filled in."""

    config: TrainConfig
    filled: Mapping[str, str] = field(default_factory=dict)

    def fill(self, layer: Layer, policies: Sequence[str] = ()) -> LayeredConfig:
        """Fill in what is open and the layer has; by policy, what `policies` leave open."""
        config, filled = self.config, dict(self.filled)
        for setting in AUTOMATIC:
            left = _left_open(config, setting, policies)
            layered = layer(setting, config, left) if left else None
            if layered is None:
                continue
            value, source = layered
            values = value if setting in by_policy(TrainConfig) else {"": value}
            if values:
                config = with_values(config, setting, values)
                filled[setting] = source
        return LayeredConfig(config, filled)

    def follow(self, config: TrainConfig) -> LayeredConfig:
        """Take over `config`, in which open settings have their default."""
        chosen = [name for name in AUTOMATIC if getattr(config, name) != getattr(self.config, name)]
        return LayeredConfig(config, {**self.filled, **dict.fromkeys(chosen, DEFAULT)})

    @property
    def sources(self) -> dict[str, str]:
        """Source of the value of every setting."""
        values = vars(self.config)
        sources = {
            setting.name: DEFAULT if values[setting.name] == setting.default else GIVEN
            for setting in fields(TrainConfig)
        }
        return sources | dict(self.filled)


def _left_open(config: TrainConfig, setting: str, policies: Sequence[str]) -> Sequence[str]:
    """Policies that leave a setting open, or "" for a setting of the whole run."""
    written = getattr(config, setting)
    if setting in by_policy(TrainConfig):
        frozen = config.frozen if setting == "lr" else ()
        return [
            name
            for name in policies
            if name not in frozen and value_of(setting, written, name) is None
        ]
    unused = {"eval_every": bool(config.eval_at), "schedule_steps": config.schedule == "constant"}
    return [""] if written == AUTOMATIC[setting] and not unused.get(setting) else []


def earlier_layer(earlier: Mapping[str, object] | None) -> Layer:
    """Make the layer of the settings of the run that is continued."""

    def value(setting: str, config: TrainConfig, policies: Sequence[str]) -> LayerValue | None:
        written = (earlier or {}).get(setting)
        if setting == "schedule_steps" and earlier:
            written = _earlier_curve(config, earlier)
        if setting not in by_policy(TrainConfig):
            is_open = written is None or written == AUTOMATIC[setting]
            return None if is_open else LayerValue(written, EARLIER)
        values = {name: value_of(setting, written, name) for name in policies}
        return LayerValue({k: v for k, v in values.items() if v is not None}, EARLIER)

    return value


def _earlier_curve(config: TrainConfig, earlier: Mapping[str, Any]) -> int:
    steps: int = earlier.get("steps") or config.steps
    curve: int = earlier.get("schedule_steps") or steps
    # A longer curve would shift the rates of the steps that are done.
    if config.steps > max(steps, curve):
        raise UsageError(
            f"`steps` {config.steps} goes beyond the {curve} over which the {config.schedule} "
            f"schedule of this run falls: add --schedule-steps {curve} to stay at min_lr "
            f"{config.min_lr:g} after them, or --schedule-steps {config.steps} for the longer "
            "curve, which the learning rate then jumps to"
        )
    return curve


def default_layer(setting: str, config: TrainConfig, policies: Sequence[str]) -> LayerValue | None:
    """Value that follows from other settings."""
    if setting == "old_logp" and config.engine_dtype == "int8":
        return LayerValue(config.usual_old_logp, "engine_dtype int8")
    fifth = max(1, config.steps // FEWEST_INTERVALS)
    values: dict[str, Any] = {
        "shard_jobs": SHARD_JOBS[config.backend],
        "eval_every": next(bound for bound in (20, 10, fifth) if bound <= fifth),
        # Listed steps have checkpoints too.
        "checkpoint_every": 10 if config.eval_at else min(10, config.eval_every),
        "schedule_steps": config.steps,
        "old_logp": config.usual_old_logp,
        **{name: dict.fromkeys(policies, value) for name, value in PLAIN.items()},
    }
    return LayerValue(values[setting], DEFAULT) if setting in values else None


def without_models(config: TrainConfig, earlier: Mapping[str, object] | None = None) -> TrainConfig:
    """Fill in the automatic values that need no model."""
    return LayeredConfig(config).fill(earlier_layer(earlier)).fill(default_layer).config
