"""Default settings that follow from the model: learning rate, reply budget, sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from flowzoo.baselines.settings.by_policy import of_policy, value_of, with_values
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.envs.settings import read_named
from flowzoo.errors import UsageError

BY_MODEL = ("lr", "max_tokens", "eval_problems", "temperature", "top_p", "top_k")
"""Settings whose None leaves the value to the model."""
PLAIN: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Sampling from the model's own distribution."""

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


class Settled(NamedTuple):
    """Resolved settings, and the values that follow from the models."""

    config: TrainConfig
    by_model: dict[str, float | str]
    sources: dict[str, str]
    """Source of each of these."""


def settle(
    config: TrainConfig,
    names: Sequence[str],
    reply_tokens: int,
    before: Mapping[str, Any] | None = None,
) -> Settled:
    """Fill in what `config` leaves to the models of the policies `names`.

    `reply_tokens` is the length of a reply to the task's problems; `before` has the settings of the
    run that is continued.
    """
    requested = config.engine_dtype
    config = _continued(config, names, before or {})
    dtype = run_dtype(config, names)
    config = replace(config, engine_dtype=dtype)
    by_model: dict[str, float | str] = {}
    sources: dict[str, str] = {}
    if requested == "auto" and dtype != "float32":
        by_model["engine_dtype"], sources["engine_dtype"] = dtype, "the model"
    if config.compute is None:
        config = replace(config, compute=run_compute(config, names))
        if config.compute == "bfloat16":
            by_model["compute"], sources["compute"] = "bfloat16", "the model"
    if config.old_logp is None:
        config = replace(config, old_logp=config.usual_old_logp)
        if dtype == "int8":
            by_model["old_logp"], sources["old_logp"] = "recomputed", "engine_dtype int8"
    left = _open_policies(config, names)
    # Without a correction the ratio of the loss is to the model's whole distribution, and not to
    # that of its generation config.
    if config.correction == "none":
        for name in left.keys() & PLAIN.keys():
            config = with_values(config, name, dict.fromkeys(left.pop(name), PLAIN[name]))
    if not left:
        return Settled(config, by_model, sources)
    # Reads configuration and tokenizer of a model, never its weights.
    models = read_named(config.models, names, "models")
    switches = read_thinking(config.thinking, names)
    traits = {name: traits_of(models.get(name, config.model)) for name in names}
    sources |= dict.fromkeys(left, "the model")
    values: dict[str, Mapping[str, Any]] = {}
    # Of several models the lowest rate, and the longest reply budget that fits all.
    if "lr" in left:
        adapters = {name: of_policy(config, name).lora_rank > 0 for name in left["lr"]}
        trained = [traits[name] for name in names if name not in config.frozen]
        values["lr"] = {
            name: min(learning_rate(model, adapter=adapter) for model in trained)
            for name, adapter in adapters.items()
        }
        sources["lr"] = "the model; an adapter" if any(adapters.values()) else "the model"
    if "max_tokens" in left:
        budget, sources["max_tokens"] = reply_budget(
            list(traits.values()), list(switches.values()), reply_tokens, _TINY_TOKENS
        )
        values["max_tokens"] = dict.fromkeys(names, budget)
    if "eval_problems" in left:
        tiny = all(model.weights < TINY for model in traits.values())
        values["eval_problems"] = dict.fromkeys(
            names, TINY_EVAL_PROBLEMS if tiny else EVAL_PROBLEMS
        )
    for name in left.keys() & PLAIN.keys():
        values[name] = dict.fromkeys(left[name], _agree(name, {p: traits[p] for p in left[name]}))
    for name in (name for name in BY_MODEL if name in values):
        config = with_values(config, name, values[name])
        value = getattr(config, name)
        by_model[name] = " ".join(value) if isinstance(value, tuple) else value
    return Settled(config, by_model, sources)


def _open_policies(config: TrainConfig, names: Sequence[str]) -> dict[str, list[str]]:
    """Policies whose value is left to the model, by setting; frozen ones need no rate."""
    views = {name: of_policy(config, name) for name in names}
    left = {
        setting: [
            name
            for name, view in views.items()
            if getattr(view, setting) is None and not (setting == "lr" and name in config.frozen)
        ]
        for setting in BY_MODEL
    }
    return {setting: policies for setting, policies in left.items() if policies}


def _continued(
    config: TrainConfig, names: Sequence[str], earlier: Mapping[str, Any]
) -> TrainConfig:
    """Take over what the run that is continued was given by the model."""
    for setting, policies in _open_policies(config, names).items():
        values = {name: value_of(setting, earlier.get(setting), name) for name in policies}
        values = {name: value for name, value in values.items() if value is not None}
        config = with_values(config, setting, values) if values else config
    return config


def run_dtype(config: TrainConfig, names: Sequence[str]) -> EngineDType:
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
    return _common_dtype(config, names, device)


def run_compute(config: TrainConfig, names: Sequence[str]) -> Compute:
    """The number format of matrix products of a run's learners: one for all policies."""
    if config.weights == "bfloat16":
        return "bfloat16"
    device = vllm_device() if config.device == "auto" else config.device
    dtype = _common_dtype(config, names, device, config.frozen)
    return "bfloat16" if dtype == "bfloat16" else "float32"


def _common_dtype(
    config: TrainConfig, names: Sequence[str], device: str, without: Sequence[str] = ()
) -> EngineDType:
    # The format that suits the models of the policies `names`; float32 if they differ.
    named = read_named(config.models, names, "models")
    models = sorted({named.get(name, config.model) for name in names if name not in without})
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
