"""Facts of a model that default settings follow from: length of replies, number format."""

import functools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flowzoo.agents.chat.thoughts import thinks_unasked
from flowzoo.agents.identity import load_texts, whole_model
from flowzoo.agents.model_files import cannot_load, model_source

_log = logging.getLogger("flowzoo")

WeightDType = Literal["float32", "bfloat16", "float16"]
"""Number formats of weights that are loaded."""
EngineDType = Literal["float32", "bfloat16", "float16", "int8"]
"""Number formats of sampling; in int8 linear layers multiply, and all else is float32."""
EngineDTypeChoice = Literal["auto", "float32", "bfloat16", "float16", "int8"]
LEAST_WEIGHTS = 100e6
"""Weights from which on `auto` is bfloat16; the largest pocket model has 97 million."""

_CPU_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
"""Capabilities of a CPU, by torch's names, each of which multiplies bfloat16."""


def has_bfloat16(device: str) -> bool:
    """True if `device` multiplies bfloat16 in hardware; a GPU that is not here does."""
    import torch

    if not device.startswith("cpu"):
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(False)
    if hasattr(torch.cpu, "get_capabilities"):
        flags = torch.cpu.get_capabilities()
        return any(flags.get(name) for name in _CPU_FLAGS)
    return torch.cpu._is_avx512_bf16_supported()  # before torch 2.11


def vllm_device() -> str:
    """The kind of device that a vLLM engine of this machine runs on."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def dtype_for(
    choice: EngineDTypeChoice, source: str | os.PathLike[str], device: str
) -> EngineDType:
    """Return the number format in which a model is sampled; `auto` suits model and device."""
    # bfloat16 halves the memory traffic where the hardware multiplies it. Smaller models, the
    # pocket models of every size among them, stay in float32, so that their figures are the same
    # everywhere.
    if choice != "auto":
        return choice
    if has_bfloat16(device) and weights_at(os.fspath(source)) >= LEAST_WEIGHTS:
        return "bfloat16"
    return "float32"


@functools.lru_cache(maxsize=64)
def weights_at(source: str) -> float:
    """Number of weights of the model at `source`, by its configuration."""
    # Infinity for a family of which transformers has no causal language model: vLLM alone runs it.
    from transformers import AutoConfig

    source = whole_model(model_source(source, weights=False))
    try:
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # of any kind, by what the file holds
        raise cannot_load(source, error) from error
    try:
        return count_weights(config)
    except ValueError:
        return math.inf
    except Exception as error:  # as above
        raise cannot_load(source, error) from error


def count_weights(config: object) -> int:
    """Number of weights of a model of transformers; nothing is allocated."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return sum(parameter.numel() for parameter in model.parameters())


def context_of(config: Any) -> int | None:
    """Most tokens of a row for a model of this configuration; None: it states no limit."""
    # A longer row would change what others are: rope with two sets of factors takes the long one
    # for all rows of a batch (transformers) or of an engine (vLLM) if one is beyond its border. The
    # border of rope that grows (dynamic) is the limit itself.
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None)
    rope = getattr(text, "rope_parameters", None) or {}
    borders = [
        part["original_max_position_embeddings"]
        for part in (rope, *rope.values())  # one for all layers, or one for each type of them
        if isinstance(part, dict)
        and any(part.get(f"short_{name}") != part.get(f"long_{name}") for name in _SETS)
    ]
    context = min((size for size in (limit, *borders) if size), default=None)
    if context and context != limit:
        _tell_border(text.model_type, context)
    return context


def borders_of(config: Any) -> list[int]:
    """Numbers of tokens, below the context, from which on a model computes in another way."""
    # Windows and chunks, of attention and of states, and the length that rope was made for.
    borders: set[int] = set()
    parts = [config.get_text_config(decoder=True).to_dict()]
    for part in parts:
        parts += [value for value in part.values() if isinstance(value, dict)]
        sizes = (value for name, value in part.items() if str(name).endswith(_BORDERS))
        borders |= {size for size in sizes if isinstance(size, int) and size > 0}
    return sorted(size for size in borders if size < (context_of(config) or math.inf))


@functools.cache
def _tell_border(kind: str, border: int) -> None:
    _log.warning(
        "%s: prompt and reply have %d tokens at most, where its rope goes over from short_factor "
        "to long_factor for a whole batch; for more, make short_factor equal to long_factor in the "
        "config.json of a copy of the model",
        kind,
        border,
    )


_BORDERS = ("window", "window_size", "chunk_size", "original_max_position_embeddings")
"""Endings of the names under which configurations state borders."""
_SETS = ("factor", "mscale")
"""Parameters of rope that a configuration may give twice, as `short_` and `long_`."""

TINY = 10e6
"""Number of weights below which a model counts as small, like the pocket models."""
THOUGHT_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """Facts of a model that default settings follow from."""

    weights: float = 0.0
    """Number of weights."""
    context: float = math.inf
    """Most tokens of prompt and reply."""
    thinks: bool = False
    """True if it thinks by default."""
    generation: Mapping[str, Any] = field(default_factory=dict)
    """The generation config, without defaults."""


class ReplyBudget(NamedTuple):
    """Most tokens of a reply."""

    tokens: int
    source: str
    """`the task` or `the model`: origin of the number."""


def reply_budget(
    models: Sequence[ModelTraits], switches: Sequence[bool | None], task: int, tiny: int
) -> ReplyBudget:
    """The longest reply that suits all models: `task` tokens, or `tiny` for small ones."""
    # What the task needs and the model allows: never above `max_new_tokens` of the generation
    # config, nor half of the context, so that prompts have the other half. Thoughts get as much as
    # in AT-GRPO (arXiv:2510.11062) and Dr. MAS (arXiv:2602.08847).
    limits: list[int] = []
    for model, switch in zip(models, switches, strict=True):
        thinks = model.thinks if switch is None else switch
        usual = tiny if model.weights < TINY else THOUGHT_TOKENS if thinks else task
        limits.append(min(usual, int(model.generation.get("max_new_tokens") or usual)))
    half = min(model.context for model in models) // 2
    tokens = max(1, int(min(max(limits), half)))
    return ReplyBudget(tokens, "the task" if tokens == task else "the model")


def traits_of(source: str) -> ModelTraits:
    """Read a model's traits from its configuration and tokenizer."""
    if source.partition(":")[0] == "pocket":
        return ModelTraits()
    texts = load_texts(Path(model_source(source, weights=False)))
    try:
        weights = count_weights(texts.config)
    except ValueError as error:
        raise cannot_load(source, error) from error
    generation = texts.generation.to_diff_dict() if texts.generation else {}
    context = context_of(texts.config) or math.inf
    return ModelTraits(weights, context, thinks_unasked(texts.tokenizer), generation)
