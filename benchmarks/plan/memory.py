"""Memory of learners by part: what each holds all the time, and what while it learns.

A sum of what the code allocates, not a measurement: the context of CUDA, buffers of NCCL, graphs of
the engine and what the allocator loses between tensors are not in it. `benchmarks/gpu/learner.py`
measures the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from benchmarks.plan.activations import Activations
from benchmarks.plan.shape import ModelShape, numbers
from flowzoo.agents.vllm.settings import EngineSettings
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.vocabulary import chunk_of
from flowzoo.baselines.settings.options import Sharding

GIB = 2**30
_CHUNKS = 2
"""Chunks of logits that are in memory at once: scores and their gradient. The sample of
distributions that an update is measured by (`update_effect`) is a further one."""


@dataclass(frozen=True, slots=True)
class LearnerMemory:
    """Bytes on one GPU, by part."""

    held: Mapping[str, int]
    """All the time."""
    learning: Mapping[str, int]
    """During forward and backward passes, besides."""
    step: int
    """During the optimizer's step, instead of activations and logits."""

    @property
    def peak(self) -> int:
        """The most at any time."""
        passing = ("activations", "copies of weights for products", "output head", "gathered")
        rest = sum(size for name, size in self.learning.items() if name not in passing)
        passes = sum(self.learning.values()) - rest
        return sum(self.held.values()) + rest + max(passes, self.step)


def learner_memory(
    shape: ModelShape,
    activations: Activations | None,
    config: LearnerConfig,
    *,
    adapter: int = 0,
    roles: int = 1,
    ranks: int = 1,
    shard: Sharding = "none",
    gpu: bool = True,
) -> LearnerMemory:
    """Memory of the learner of one policy on each of `ranks` GPUs.

    Args:
        adapter: weights of its LoRA adapter; 0: all weights are trained.
        roles: number of roles that the policy answers for.
        gpu: the optimizer steps all parameters at once, as torch does on a GPU.
    """
    over = ranks if shard == "full" else 1
    size = 2 if config.weights == "bfloat16" else 4
    trained_size = 4 if adapter else size
    trained = adapter or shape.parameters
    held = {"weights": shape.parameters * size // over}
    if adapter:
        held["adapter"] = adapter * 4 // over
    held["optimizer"] = optimizer_bytes(shape, config, adapter) // over
    if config.needs_reference and not adapter:
        held["reference of the KL term"] = shape.parameters * size // over
    if config.coherence:
        held["running mean of gradients"] = trained * trained_size // over
    gradients = trained * trained_size // over
    learning = {"gradients": gradients}
    if config.role_gradients and roles > 1:
        learning["gradients of further roles"] = (roles - 1) * gradients
    # FSDP gathers a layer while it prefetches the next, and the rest once.
    if over > 1:
        learning["gathered"] = (2 * shape.largest_layer + shape.outside) * size + (
            0 if adapter else (shape.largest_layer + shape.outside) * 4
        )
    if activations is not None:
        learning["activations"] = activations.kept(
            config.microbatch_tokens, again=config.gradient_checkpointing
        )
        if activations.copies:
            learning["copies of weights for products"] = activations.copies
    learning["output head"] = head_bytes(shape, config, trained=not adapter)
    # torch's AdamW on many tensors at once keeps the root of the second moments of all of them.
    step = gradients if gpu and config.optimizer == "adamw" and trained_size == 4 else 0
    return LearnerMemory(held, learning, step)


def head_bytes(shape: ModelShape, config: LearnerConfig, *, trained: bool) -> int:
    """Bytes of the logits of a few chunks, the head's gradient, and its copy in bfloat16."""
    chunk = min(chunk_of(shape.vocabulary, config.vocabulary_chunk), config.microbatch_tokens)
    size = (_CHUNKS + config.update_effect) * chunk * shape.vocabulary * 4
    lower = config.compute == "bfloat16" and config.weights == "float32"
    if trained:
        size += shape.head * (4 if config.weights == "float32" else 2)
    if lower:
        size += shape.head * (4 if trained else 2)  # the weight and, in pieces, its gradient
    return size


def optimizer_bytes(shape: ModelShape, config: LearnerConfig, adapter: int = 0) -> int:
    """Bytes of the optimizer's state for all weights, or for an adapter of `adapter` weights."""
    moment = 2 if config.weights == "bfloat16" and not adapter else 4
    trained = adapter or shape.parameters
    if config.optimizer == "sgd":
        return 0
    if config.optimizer == "adafactor":
        # Sums of rows and columns, or all of a vector.
        weights = [*shape.weights, *chain.from_iterable(shape.layers)]
        sums = sum(sum(weight) if len(weight) > 1 else numbers([weight]) for weight in weights)
        return 4 * adapter // 2 if adapter else 4 * sums
    if config.optimizer == "muon":
        inner = adapter or sum(
            numbers([weight]) for layer in shape.layers for weight in layer if len(weight) == 2
        )
        return 4 * inner + 8 * (trained - inner)
    if config.optimizer == "adamw8bit":  # with a float for every block of 256
        return 2 * trained + 2 * 4 * trained // 256
    return 2 * moment * trained


class EngineBytes(NamedTuple):
    """Bytes of one engine, on one GPU."""

    weights: int
    cache: int
    """Least cache that it starts with."""
    heads: int
    """Attention heads, whose number the GPUs must divide."""
    groups: int
    """Heads of keys and values; of more GPUs some hold the same ones."""

    def on(self, gpus: int) -> int:
        """Bytes on each of `gpus` GPUs (tensor parallel)."""
        return self.weights // gpus + self.cache // min(gpus, self.groups)


def with_cache(
    engines: Sequence[EngineBytes], bytes_each: int, cache_gib: float | None, gpus: int = 1
) -> int:
    """Bytes that engines take of each of the `gpus` GPUs that they share.

    `cache_gib` bounds their caches on a GPU; None: vLLM takes its share of the GPU.
    """
    least = sum(engine.on(gpus) for engine in engines)
    if cache_gib is None:  # taken whether it is needed or not
        return max(least, int(EngineSettings().gpu_share * bytes_each))
    return max(least, sum(engine.weights // gpus for engine in engines) + int(cache_gib * GIB))


def gpus_of_each(engines: Sequence[EngineBytes], gpus: int, room: int, given: int = 0) -> int:
    """GPUs that each engine is spread over, of whose bytes `room` may be used; 1: all share one.

    The settings give `given` GPUs; with 0 an engine has as few as hold it, in powers of two.
    """
    most = gpus // len(engines)
    if given > 1:
        each = given // len(engines)
        return each if each <= most else 1
    if sum(engine.on(1) for engine in engines) <= room:
        return 1
    for each in (2**power for power in range(1, most.bit_length())):
        if all(engine.heads % each == 0 and engine.on(each) <= room for engine in engines):
            return each
    return 1
