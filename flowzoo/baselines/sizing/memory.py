"""Memory of learners by part: what each holds all the time, and what while it learns.

A sum of what the code allocates, not a measurement: the context of CUDA, buffers of NCCL, graphs of
the engine and what the allocator loses between tensors are not in it. `benchmarks/gpu/learner.py`
measures the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.vocabulary import chunk_of
from flowzoo.baselines.settings.scale import Sharding
from flowzoo.baselines.sizing.activations import Activations
from flowzoo.baselines.sizing.shape import ModelShape, Shape, numbers

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
    """During the optimiser's step, in the place of activations and logits."""

    @property
    def counted(self) -> bool:
        """Whether all parts are there; without activations the rest is a lower bound."""
        return "activations" in self.learning

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
    """What the learner of one policy takes on each of `ranks` GPUs.

    Args:
        shape: of its model.
        activations: what a backward pass keeps of it; None: unknown, and left out.
        config: of the learner.
        adapter: weights of its LoRA adapter; 0: all weights are trained.
        roles: that the policy answers for.
        ranks: that train it together.
        shard: whether they spread weights, gradients and optimiser.
        gpu: whether the optimiser steps all parameters at once, as torch does on a GPU.
    """
    over = ranks if shard == "full" else 1
    size = 2 if config.weights == "bfloat16" else 4
    own = 4 if adapter else size
    trained = adapter or shape.parameters
    held = {"weights": shape.parameters * size // over}
    if adapter:
        held["adapter"] = adapter * 4 // over
    held["optimiser"] = optimiser_bytes(shape, config, adapter) // over
    if config.needs_reference and not adapter:
        held["reference of the KL term"] = shape.parameters * size // over
    if config.coherence:
        held["running mean of gradients"] = trained * own // over
    gradients = trained * own // over
    learning = {"gradients": gradients}
    if config.role_gradients and roles > 1:
        learning["gradients of further roles"] = (roles - 1) * gradients
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
    step = gradients if gpu and config.optimizer == "adamw" and own == 4 else 0
    return LearnerMemory(held, learning, step)


def head_bytes(shape: ModelShape, config: LearnerConfig, *, trained: bool) -> int:
    """Logits of a few chunks, the gradient of the head's weight, and its copy in bfloat16."""
    chunk = min(chunk_of(shape.vocabulary, config.vocabulary_chunk), config.microbatch_tokens)
    found = (_CHUNKS + config.update_effect) * chunk * shape.vocabulary * 4
    lower = config.compute == "bfloat16" and config.weights == "float32"
    if trained:
        found += shape.head * (4 if config.weights == "float32" else 2)
    if lower:
        found += shape.head * (4 if trained else 2)  # the weight and, in pieces, its gradient
    return found


def optimiser_bytes(shape: ModelShape, config: LearnerConfig, adapter: int = 0) -> int:
    """State of the optimiser of all weights, or of an adapter of so many."""
    own = 2 if config.weights == "bfloat16" and not adapter else 4
    trained = adapter or shape.parameters
    if config.optimizer == "sgd":
        return 0
    if config.optimizer == "adafactor":
        return 4 * sum(map(_sums, _all(shape))) if not adapter else 4 * adapter // 2
    if config.optimizer == "muon":
        inner = adapter or sum(
            numbers([one]) for layer in shape.layers for one in layer if len(one) == 2
        )
        return 4 * inner + 8 * (trained - inner)
    if config.optimizer == "adamw8bit":  # with a float for every block of 256
        return 2 * trained + 2 * 4 * trained // 256
    return 2 * own * trained


def _all(shape: ModelShape) -> Sequence[Shape]:
    return [*shape.weights, *(one for layer in shape.layers for one in layer)]


def _sums(one: Shape) -> int:
    """Numbers of adafactor's second moment: sums of rows and columns, or all of a vector."""
    return sum(one) if len(one) > 1 else numbers([one])
