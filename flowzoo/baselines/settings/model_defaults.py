"""Default settings that follow from the model: learning rate, reply budget, sampling."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

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
from flowzoo.baselines.settings.by_policy import of_policy
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.layers import (
    DEFAULT,
    PLAIN,
    LayeredConfig,
    LayerValue,
    default_layer,
)
from flowzoo.errors import UsageError

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


class ModelLayer:
    """Layer of the values that follow from the models of a run's policies.

    It reads configurations and tokenizers, never weights, and only if a setting is open.
    """

    def __init__(self, models: Mapping[str, str], reply_tokens: int) -> None:
        self._models = models
        """Starting model by policy."""
        self._reply_tokens = reply_tokens
        """Length of a reply to the task's problems."""

    @cached_property
    def _traits(self) -> dict[str, ModelTraits]:
        return {name: traits_of(model) for name, model in self._models.items()}

    def __call__(
        self, setting: str, config: TrainConfig, policies: Sequence[str]
    ) -> LayerValue | None:
        """Value of an open setting for `policies`."""
        if setting == "engine_dtype":
            return _unless_float32(run_dtype(config, self._models))
        if setting == "compute":
            return _unless_float32(run_compute(config, self._models))
        if setting == "lr":
            return self._rates(config, policies)
        if setting == "max_tokens":
            switches = read_thinking(config.thinking, self._models)
            traits = list(self._traits.values())
            budget = reply_budget(traits, list(switches.values()), self._reply_tokens, _TINY_TOKENS)
            return LayerValue(*budget)
        if setting == "eval_problems":
            tiny = all(model.weights < TINY for model in self._traits.values())
            return LayerValue(TINY_EVAL_PROBLEMS if tiny else EVAL_PROBLEMS, _MODEL)
        # Without a correction the ratio of the loss is to the model's whole distribution, and not
        # to that of its generation config.
        if setting in PLAIN and config.correction != "none":
            value = _agree(setting, {name: self._traits[name] for name in policies})
            return LayerValue(dict.fromkeys(policies, value), _MODEL)
        return None

    def _rates(self, config: TrainConfig, policies: Sequence[str]) -> LayerValue:
        """Learning rates of policies: of several models, the lowest one."""
        adapters = {name: of_policy(config, name).lora_rank > 0 for name in policies}
        trained = [model for name, model in self._traits.items() if name not in config.frozen]
        rates = {
            name: min(learning_rate(model, adapter=adapter) for model in trained)
            for name, adapter in adapters.items()
        }
        return LayerValue(rates, f"{_MODEL}; an adapter" if any(adapters.values()) else _MODEL)


def _unless_float32(dtype: str) -> LayerValue:
    return LayerValue(dtype, DEFAULT if dtype == "float32" else _MODEL)


def fill_from_models(
    layered: LayeredConfig, models: Mapping[str, str], reply_tokens: int
) -> LayeredConfig:
    """Fill in what is left to the models, which are by policy, and to the defaults."""
    policies = list(models)
    return layered.fill(ModelLayer(models, reply_tokens), policies).fill(default_layer, policies)


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
