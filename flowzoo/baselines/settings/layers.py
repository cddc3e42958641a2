"""Automatic values of settings, by layers.

A setting that the user leaves open, on the command line, in a file and in Python, has the value of
the first layer that has one: the run that is continued, the models, the defaults. What is left open
after that is the algorithm's (`flowzoo.baselines.settings.algorithms`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, NamedTuple

from flowzoo.agents.chat.template import read_thinking
from flowzoo.agents.engines import find_engine
from flowzoo.agents.traits import (
    TINY,
    EngineDType,
    ModelTraits,
    dtype_for,
    reply_budget,
    traits_of,
    vllm_device,
)
from flowzoo.baselines.learner.config import Compute
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.options import SHARD_JOBS
from flowzoo.baselines.settings.policies import by_policy, of_policy, value_of, with_values
from flowzoo.errors import UsageError

AUTOMATIC: Mapping[str, Any] = {
    "prompts": None, "examples": None, "shard_jobs": None, "eval_every": 0, "checkpoint_every": 0,
    "schedule_steps": 0, "engine_dtype": "auto", "compute": None, "old_logp": None, "lr": None,
    "max_tokens": None, "eval_problems": None, "temperature": None, "top_p": None, "top_k": None,
}  # fmt: skip
"""Settings with an automatic value, by the value that leaves them open. The automatic value of one
may depend on those before it."""
GIVEN, EARLIER, ALGORITHM, DEFAULT = "the user", "the earlier run", "the algorithm", "the default"
"""Sources of values; `model_layer` has others."""
PLAIN: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Sampling from the model's own distribution."""
_MODEL = "the model"

# All weights: 1e-6 from 400 million on is what DAPO (arXiv 2503.14476), Dr. MAS (2602.08847) and
# AT-GRPO (2510.11062) train models of 0.6 to 32 billion weights with, and TRL's default for GRPO;
# 2e-4 below 10 million, at which the pocket models were tried. The steps between are ours: a warm
# model of 135 million gained with 5e-6 at 128 replies a step, and lost all it knew within 20 steps
# with 3e-5 at 64 (docs/tutorials/real-models.md).
# An adapter takes at least ten times as much ("LoRA without regret", Schulman et al. 2025): 1e-5
# from a billion weights on (TRL's reproduction of that paper with SmolLM3-3B), 5e-5 below (TRL's
# example for Qwen3-0.6B; SkyRL's for Qwen2.5-0.5B on GSM8K has 3e-5). Below 400 million the numbers
# are ours.
_RATES = (
    (TINY, 2e-4, 2e-4),
    (100e6, 5e-5, 2e-4),
    (400e6, 5e-6, 1e-4),
    (1e9, 1e-6, 5e-5),
    (math.inf, 1e-6, 1e-5),
)
"""Learning rates of models of fewer weights than the first number: all weights, an adapter."""
_TINY_TOKENS = 64
# A pocket model plays 500 in seconds; with 100 an interval is 20 points wide at the worst.
TINY_EVAL_PROBLEMS, EVAL_PROBLEMS = 500, 100
"""Held-out problems of an evaluation: of models of the pocket's kind, and of others."""


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

    def fill(self, layer: Layer, policies: Sequence[str] = ()) -> "LayeredConfig":
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

    def follow(self, config: TrainConfig) -> "LayeredConfig":
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
    fifth = max(1, config.steps // 5)  # a finding on cliffs needs five evaluations
    values: dict[str, object] = {
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


def model_layer(models: Mapping[str, str], reply_tokens: int) -> Layer:
    """Make the layer of the values that follow from the models of a run's policies.

    It reads configurations and tokenizers, never weights, and only if a setting is open.

    Args:
        models: starting model by policy.
        reply_tokens: length of a reply to the task's problems.
    """

    @cache
    def traits() -> dict[str, ModelTraits]:
        return {name: traits_of(model) for name, model in models.items()}

    def value(setting: str, config: TrainConfig, policies: Sequence[str]) -> LayerValue | None:
        if setting in ("engine_dtype", "compute"):
            dtype = (run_dtype if setting == "engine_dtype" else run_compute)(config, models)
            return LayerValue(dtype, DEFAULT if dtype == "float32" else _MODEL)
        if setting == "lr":
            return _model_rates(config, traits(), policies)
        if setting == "max_tokens":
            switches = read_thinking(config.thinking, models).values()
            shapes = list(traits().values())
            return LayerValue(*reply_budget(shapes, list(switches), reply_tokens, _TINY_TOKENS))
        if setting == "eval_problems":
            tiny = all(model.weights < TINY for model in traits().values())
            return LayerValue(TINY_EVAL_PROBLEMS if tiny else EVAL_PROBLEMS, _MODEL)
        # Without a correction the ratio of the loss is to the model's whole distribution, and not
        # to that of its generation config.
        if setting in PLAIN and config.correction != "none":
            common = _agree(setting, {name: traits()[name] for name in policies})
            return LayerValue(dict.fromkeys(policies, common), _MODEL)
        return None

    return value


def _model_rates(
    config: TrainConfig, traits: Mapping[str, ModelTraits], policies: Sequence[str]
) -> LayerValue:
    """Learning rates of policies: of several models, the lowest one."""
    adapters = {name: of_policy(config, name).lora_rank > 0 for name in policies}
    trained = [model for name, model in traits.items() if name not in config.frozen]
    rates = {
        name: min(learning_rate(model, adapter=adapter) for model in trained)
        for name, adapter in adapters.items()
    }
    return LayerValue(rates, f"{_MODEL}; an adapter" if any(adapters.values()) else _MODEL)


def fill_from_models(
    layered: LayeredConfig, models: Mapping[str, str], reply_tokens: int
) -> LayeredConfig:
    """Fill in what is left to the models, which are by policy, and to the defaults."""
    policies = list(models)
    return layered.fill(model_layer(models, reply_tokens), policies).fill(default_layer, policies)


def run_dtype(config: TrainConfig, models: Mapping[str, str]) -> EngineDType:
    """The number format in which the engines of a run sample: one for all policies."""
    if config.engine_dtype != "auto":
        return config.engine_dtype
    engine = find_engine(config.engine)
    if engine.traits.server:
        return "float32"
    device = config.device
    if config.rollout_gpus:
        device = "cuda"
    elif engine.traits.own_weights or device == "auto":
        device = vllm_device()
    return _common_dtype(models.values(), device)


def run_compute(config: TrainConfig, models: Mapping[str, str]) -> Compute:
    """The number format of matrix products of a run's learners: one for all policies."""
    if config.weights == "bfloat16":
        return "bfloat16"
    device = vllm_device() if config.device == "auto" else config.device
    trained = [model for name, model in models.items() if name not in config.frozen]
    dtype = _common_dtype(trained, device)
    return "bfloat16" if dtype == "bfloat16" else "float32"


def _common_dtype(models: Iterable[str], device: str) -> EngineDType:
    # The format that suits the models; float32 if they differ.
    models = set(models)
    if any(name.partition(":")[0] == "pocket" for name in models):
        return "float32"
    dtypes = {dtype_for("auto", name, device) for name in models}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def learning_rate(model: ModelTraits, *, adapter: bool) -> float:
    """The peak learning rate of a model, or of an adapter on it."""
    whole, small = next(rates for below, *rates in _RATES if model.weights < below)
    return small if adapter else whole


def _agree(name: str, models: Mapping[str, ModelTraits]) -> float:
    values = {policy: model.generation.get(name) or PLAIN[name] for policy, model in models.items()}
    if len(set(values.values())) > 1:
        text = ", ".join(f"{policy} {value:g}" for policy, value in values.items())
        raise UsageError(
            f"the models' generation configs differ in `{name}` ({text}): give `{name}` yourself"
        )
    return next(iter(values.values()))
