"""Settings that follow from the model where nobody says otherwise.

What suits a pocket model ruins a real one, and the other way round: a reply budget of 64 tokens
cuts off nearly every reply of a model that reasons, and its learning rate is 200 times what runs on
models of billions of weights take. The numbers, and where they come from:

* Learning rate of all weights: 1e-6 from 400 million weights on, which is what DAPO (arXiv
  2503.14476), Dr. MAS (2602.08847) and AT-GRPO (2510.11062) train models of 0.6 to 32 billion
  weights with, and TRL's default for GRPO; 2e-4 below 10 million, at which the pocket models were
  tried. The steps between the two are ours.
* Of an adapter ten times as much: "LoRA without regret" (Schulman et al. 2025) found that ratio
  across models and tasks, reinforcement learning included.
* Reply budget: what the model's generation config says (`max_new_tokens`), else 1024 tokens, or
  4096 where the model thinks, as in AT-GRPO and Dr. MAS; half of the context at most, so that
  prompts have the other half.
* Number format of the engine: see `flowzoo.agents.number_format`.
* Sampling: temperature 1 and nothing cut off, whatever the generation config recommends, since the
  ratio of the loss is to the model's whole distribution. Only with a `correction`, which makes the
  loss one of the distribution that was cut, its temperature, top_p and top_k are taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from flowzoo.agents.chat.thinking import read_thinking, thinks_unasked
from flowzoo.agents.gguf import model_source
from flowzoo.agents.hub import tell_hub
from flowzoo.agents.number_format import EngineDType, count_weights, dtype_for, vllm_device
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policy_map import per_policy
from flowzoo.errors import UsageError

BY_MODEL = ("lr", "max_tokens", "temperature", "top_p", "top_k")
"""Settings that None leaves to the model."""
PLAIN: Mapping[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
"""Sampling from the model's own distribution."""

_TINY = 10e6
"""Weights below which a model counts as one of the pocket's kind."""
_RATES = ((_TINY, 2e-4), (100e6, 2e-5), (400e6, 5e-6), (math.inf, 1e-6))
"""Learning rates of models of fewer weights than the first number."""
_ADAPTER, _HIGHEST = 10, 2e-4
_TOKENS, _THOUGHT_TOKENS, _TINY_TOKENS = 1024, 4096, 64


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """What of a model its settings follow from."""

    weights: float = 0.0
    """Their number."""
    context: float = math.inf
    """Most tokens of prompt and reply."""
    thinks: bool = False
    """Unless it is told otherwise."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """Its generation config, as far as that says something."""


class Settled(NamedTuple):
    """Settings of a run without gaps, and which of them the models filled."""

    config: TrainConfig
    by_model: dict[str, float | str]


def settle(
    config: TrainConfig, names: Sequence[str], before: Mapping[str, Any] | None = None
) -> Settled:
    """Fill what `config` leaves to the models.

    A model is looked at only if something depends on it: its configuration and tokenizer are read,
    its weights are not. With several models the learning rate is the lowest that any trained one
    has, and the reply budget the longest that fits all.

    Args:
        config: the settings.
        names: of the policies.
        before: the settings of the run that is continued, which keeps its own.

    Raises:
        UsageError: no model is found under a name, or the generation configs of several disagree.
    """
    known, asked = before or {}, config.engine_dtype
    kept: dict[str, Any] = {
        name: known[name]
        for name in BY_MODEL
        if getattr(config, name) is None and known.get(name) is not None
    }
    config = replace(config, **kept)
    dtype = run_dtype(config, names)
    config = replace(config, engine_dtype=dtype)
    found: dict[str, float | str] = {}
    if asked == "auto" and dtype != "float32":
        found["engine_dtype"] = dtype
    left = [name for name in BY_MODEL if getattr(config, name) is None]
    sampling = [name for name in left if name in PLAIN]
    if config.correction == "none":
        plain: dict[str, Any] = {name: PLAIN[name] for name in sampling}
        config = replace(config, **plain)
        left, sampling = [name for name in left if name not in PLAIN], []
    if not left:
        return Settled(config, found)
    models = per_policy(config.models, names, "models")
    switches = read_thinking(config.thinking, names)
    traits = {name: traits_of(models.get(name, config.model)) for name in names}
    trained = [name for name in names if name not in config.frozen]
    if "lr" in left:
        found["lr"] = min(
            (learning_rate(traits[name], adapter=config.lora_rank > 0) for name in trained),
            default=_HIGHEST,
        )
    if "max_tokens" in left:
        found["max_tokens"] = reply_budget(list(traits.values()), list(switches.values()))
    for name in sampling:
        found[name] = _agreed(name, traits)
    values: dict[str, Any] = {**found}
    return Settled(replace(config, **values), found)


def run_dtype(config: TrainConfig, names: Sequence[str]) -> EngineDType:
    """The number format in which the engines of a run sample: one for all policies.

    Raises:
        UsageError: no model is found under a name.
    """
    if config.engine_dtype != "auto":
        return config.engine_dtype
    own = per_policy(config.models, names, "models")
    models = sorted({own.get(name, config.model) for name in names})
    if config.engine == "openai" or any(name.partition(":")[0] == "pocket" for name in models):
        return "float32"
    device = config.device
    if config.rollout_gpus:
        device = "cuda"
    elif config.engine == "vllm" or device == "auto":
        device = vllm_device()
    dtypes = {dtype_for("auto", name, device) for name in models}
    return dtypes.pop() if len(dtypes) == 1 else "float32"


def learning_rate(model: ModelTraits, *, adapter: bool) -> float:
    """The peak learning rate of a model, or of an adapter on it."""
    rate = next(rate for below, rate in _RATES if model.weights < below)
    return min(_ADAPTER * rate, _HIGHEST) if adapter else rate


def reply_budget(models: Sequence[ModelTraits], switches: Sequence[bool | None]) -> int:
    """Most tokens of a reply; `switches` say of each model whether it was told to think."""
    wanted: list[int] = []
    for model, switch in zip(models, switches, strict=True):
        thinks = model.thinks if switch is None else switch
        usual = _THOUGHT_TOKENS if thinks else _TOKENS
        usual = _TINY_TOKENS if model.weights < _TINY else usual
        wanted.append(int(model.generation.get("max_new_tokens") or usual))
    half = min(model.context for model in models) // 2
    return max(1, int(min(max(wanted), half)))


def traits_of(source: str) -> ModelTraits:
    """What is known of a model by its configuration and tokenizer; `pocket…` is known anyway.

    Args:
        source: as in the settings `model` and `models`.

    Raises:
        UsageError: no model is found there.
    """
    if source.partition(":")[0] == "pocket":
        return ModelTraits()
    # Late: a run whose settings say it all needs it nowhere here.
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    source = model_source(source)
    tell_hub(source)
    try:
        made = AutoConfig.from_pretrained(source, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        weights = count_weights(made)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot load a model from {source!r}, whose settings are to be found by its "
            f"configuration; expected a folder with config.json and tokenizer files, or a model id "
            f"of the hub: {error}"
        ) from error
    try:
        generation = GenerationConfig.from_pretrained(source).to_diff_dict()
    except OSError:  # many models have none
        generation = {}
    context = getattr(made.get_text_config(), "max_position_embeddings", None)
    return ModelTraits(weights, context or math.inf, thinks_unasked(tokenizer), generation)


def _agreed(name: str, models: Mapping[str, ModelTraits]) -> float:
    """What the generation configs say of `name`, if they all say the same."""
    said = {policy: model.generation.get(name) or PLAIN[name] for policy, model in models.items()}
    if len(set(said.values())) > 1:
        told = ", ".join(f"{policy} {value:g}" for policy, value in said.items())
        raise UsageError(
            f"the models' generation configs differ in `{name}` ({told}): give `{name}` yourself"
        )
    return next(iter(said.values()))
