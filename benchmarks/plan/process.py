"""Memory of one process that samples and learns on a CPU, by part."""

from __future__ import annotations

import copy
import io
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from itertools import groupby

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoTokenizer

from benchmarks.harness.memory import status_bytes
from benchmarks.plan.activations import UncountedError, leave_meta
from benchmarks.plan.allocations import AllocatedTensors, Heap
from benchmarks.plan.shape import bare_model
from benchmarks.plan.sizes import RunSizes
from flowzoo.agents.vllm.settings import BYTES
from flowzoo.baselines.learner.batch import TrainingRow, make_rows, role_microbatches
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.update import Learner
from flowzoo.baselines.learner.weights import Weights
from flowzoo.cli import main
from flowzoo.envs.records import Call

_SMALL = """
    --options level=1 --steps 1 --problems 1 --samples 2 --max-tokens 8 --max-prompt 64
    --eval-problems 1 --threads 1 --entropy 1e-9 --truncated train
"""
"""Options of a run with the smallest pocket model."""
_PER_LOGIT = 22
"""Bytes of a logit while a token is drawn: as computed, in float32 before and after the division by
the temperature, its log-prob in float32, and its probability in float64."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Bytes of a process: those held all the time, and those that each kind of work adds."""

    held: Mapping[str, int]
    work: Mapping[str, int]

    @property
    def peak(self) -> int:
        """The most at any time."""
        return sum(self.held.values()) + max(self.work.values())


def process_memory(sizes: RunSizes) -> ProcessMemory:
    """Count the memory of a run in one process like this, which must have done nothing before."""
    config = sizes.config
    size = 2 if config.weights == "bfloat16" else 4
    held = dict.fromkeys(("libraries", "weights", "adapters", "copies for sampling"), 0)
    held["libraries"] = library_bytes(sizes)
    mapped = 0
    for name in sizes.separate_models(sizes.training):
        shape = sizes.shape(name)
        held["weights"] += shape.parameters * size
        # Copies in the learner's own format are shared with it.
        if config.module_dtype not in (config.weights, config.compute):
            number = 1 if config.module_dtype == "int8" else BYTES[config.module_dtype]
            held["copies for sampling"] += number * shape.linear
        if size == 2:  # a file in float32 is mapped while its weights are converted
            mapped = max(mapped, sizes.files[sizes.models[name]])
    if sizes.training == "lora":
        held["adapters"] = sum(
            4 * sizes.shape(name).adapter(sizes.rank(name)) for name in sizes.trained
        )
    work = {"loading": mapped, "sampling": sampling_bytes(sizes)}
    return ProcessMemory(held, work | {"learning": learning_bytes(sizes)})


def library_bytes(sizes: RunSizes) -> int:
    """Resident set of this process after a run of almost no model, with the tokenizers of a run."""
    config = sizes.config
    options = ["train", "single", *_SMALL.split(), "--compute", config.compute or "float32"]
    options += ["--engine-dtype", config.resolved_dtype, "--weights", config.weights]
    options += ["--lora-rank", "1"] if sizes.training == "lora" else []
    output = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(output), redirect_stderr(output):
        if main([*options, "--out", f"{folder}/run"]):
            raise UncountedError(f"the libraries: {output.getvalue().strip()[-200:]}")
    tokenizers = [AutoTokenizer.from_pretrained(folder) for folder in sizes.tokenizers]
    resident = status_bytes("VmRSS")
    del tokenizers
    return resident


def learning_bytes(sizes: RunSizes) -> int:
    """Bytes that learners take: copies of weights, gradients, optimizers, activations and gaps.

    An update of every policy runs on tensors without memory.
    """
    names, configs = sizes.trained, sizes.plan.learners
    calls: dict[str, list[Call]] = {}
    for name in names:
        own = [call for call in sizes.rows if call.policy == name]
        rows = make_rows(own, [1.0] * len(own), configs[name])
        calls[name] = _longest(rows, configs[name])
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            weights = _weights(sizes)
            models = [policy.model for policy in weights.values()]
            outside = [weight for model in models for weight in model.parameters()]
            heap = Heap()
            with AllocatedTensors(heap, outside):
                learners = {name: _learner(weights[name], configs[name]) for name in names}
                for learner in learners.values():
                    _make_state(learner)
                for name, learner in learners.items():
                    learner.update(calls[name], [1.0] * len(calls[name]))
    except Exception as error:  # a family that is built in another way raises any type
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise UncountedError(f"the updates of {sizes.config.model}: {reason}") from error
    return heap.growth


def _weights(sizes: RunSizes) -> dict[str, Weights]:
    # Fake ones of the trained policies. PEFT adds no adapters to fake tensors.
    config = sizes.config
    bases: dict[str, LoraBase] = {}
    weights: dict[str, Weights] = {}
    with torch.device("meta"):
        for name in sizes.trained:
            source, dtype = sizes.models[name], getattr(torch, config.weights)
            if source not in bases:
                model = bare_model(copy.deepcopy(sizes.configs[source]), dtype=dtype)
                if sizes.training == "full":
                    weights[name] = Weights(model)
                    continue
                bases[source] = LoraBase(model, "", LoraSettings())
            settings = LoraSettings(sizes.rank(name), targets=config.lora_targets)
            weights[name] = bases[source].add(name, 0, settings)
    for model in {id(policy.model): policy.model for policy in weights.values()}.values():
        leave_meta(model)
    return weights


def _learner(weights: Weights, config: LearnerConfig) -> Learner:
    separate = config.needs_reference and not weights.is_adapter
    return Learner(weights, config, copy.deepcopy(weights.model) if separate else None)


def _make_state(learner: Learner) -> None:
    # of the optimizer, as an earlier update leaves it
    for parameter in learner.parameters:
        parameter.grad = torch.zeros_like(parameter)
    learner.optimizer.step()
    learner.gradient.clear()


def _longest(rows: Sequence[TrainingRow], config: LearnerConfig) -> list[Call]:
    # of two microbatches of every role: the first makes gradients, the second adds to them
    calls: list[Call] = []
    for parts in role_microbatches(rows, config, "packed").values():
        parts.sort(key=lambda part: -sum(_length(row.call) for row in part))
        calls += [row.call for part in parts[:2] for row in part]
    return calls


def _length(call: Call) -> int:
    return len(call.prompt_ids) + len(call.output_ids)


def sampling_bytes(sizes: RunSizes) -> int:
    """Bytes of a cache and of logits, for the calls that are open at the same time."""

    def moment(call: Call) -> tuple[str, int, int]:
        return call.policy, call.turn, call.phase

    most = 0
    size = 2 if sizes.config.weights == "bfloat16" else 4
    for (policy, *_), group in groupby(sorted(sizes.rows, key=moment), moment):
        lengths = sorted(map(_length, group))[-sizes.config.max_batch :]
        shape = sizes.shape(policy)
        token = size * shape.cache
        most = max(most, len(lengths) * (lengths[-1] * token + shape.vocabulary * _PER_LOGIT))
    return most
