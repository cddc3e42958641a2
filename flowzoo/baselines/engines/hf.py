"""The models a run trains, and the engines that sample from them."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer

from flowzoo.agents import Policy, Request, Sampling
from flowzoo.agents.chat.prompts import TemplatedPolicy
from flowzoo.agents.chat.template import ChatTokenizer, read_thinking
from flowzoo.agents.hf.decode import check_decoding, check_int8
from flowzoo.agents.hf.kept_linears import KeptLinears
from flowzoo.agents.hf.policy import TransformersPolicy, load_model
from flowzoo.agents.identity import ModelIdentity, adapter_base, end_at, identify
from flowzoo.agents.pocket import pocket_path, read_pocket
from flowzoo.agents.policy import Batching, Completion
from flowzoo.agents.traits import EngineDType
from flowzoo.agents.vllm.backend import EngineDeadError
from flowzoo.aliases import MetricRow
from flowzoo.baselines.backends.sync_check import LogprobGap, check_coarseness, check_layers
from flowzoo.baselines.learner.lora import LoraBase, LoraSettings
from flowzoo.baselines.learner.weights import FrozenWeights, Weights
from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.baselines.settings.policies import of_policy
from flowzoo.baselines.settings.rules import check, transfer_device_rules
from flowzoo.errors import FlowzooError, UsageError


class LoadedPolicy(NamedTuple):
    """One policy's weights, the tokenizer they came with, and the model they were loaded from."""

    weights: Weights
    tokenizer: Any
    model: ModelIdentity
    frozen: bool = False  # true if the policy keeps its initial weights: no learner, no checkpoint

    @property
    def adapter(self) -> bool:
        """True if the weights are an adapter on a base."""
        return self.weights.is_adapter


class PolicyModel(NamedTuple):
    """Source of one policy's weights, and whether they are trained."""

    model: ModelIdentity
    lora: LoraSettings | None
    """Settings of the adapter on the model, if one is trained."""
    frozen: bool

    @property
    def adapter(self) -> bool:
        """True if an adapter on the model is trained."""
        return self.lora is not None


def policy_models(
    config: TrainConfig,
    models: Mapping[str, str],
    task: str,
    began: Mapping[str, ModelIdentity] = MappingProxyType({}),
    accept: bool = False,
) -> dict[str, PolicyModel]:
    """Find the starting model of every policy, of which `models` has the name; nothing is loaded.

    `began` has the models that the run began with, which must be the same; `accept` takes others.

    Raises:
        UsageError: a model is not the one that the run `began` with, or only an adapter.
    """
    sources: dict[str, PolicyModel] = {}
    owner = f"the run in {config.directory}"
    for name, named in models.items():
        model = _model_of(named, task, began.get(name), owner)
        if name in began:
            # Checkpoints have no tokenizer of a frozen policy.
            may = None if name in config.frozen else accept
            model = began[name].compare(model, owner, may)
        if adapter_base(Path(model.path)) is not None:
            raise UsageError(
                f"{model.location} holds an adapter, and training starts from a whole model: write "
                "one with `flowzoo export RUN --policy NAME --merge --out FOLDER`, or repeat the "
                "command of the adapter's run with more --steps to train it further"
            )
        still, values = name in config.frozen, of_policy(config, name)
        lora = None
        if values.lora_rank and not still:
            lora = LoraSettings(values.lora_rank, values.lora_alpha, values.lora_targets)
        sources[name] = PolicyModel(model, lora, still)
    return sources


def identities(models: Mapping[str, PolicyModel]) -> dict[str, ModelIdentity]:
    """The model by policy, which other processes of a run and checkpoints have."""
    return {name: policy.model for name, policy in models.items()}


def _model_of(name: str, task: str, began: ModelIdentity | None, owner: str) -> ModelIdentity:
    kind, _, rest = name.partition(":")
    source = str(pocket_path(*read_pocket(rest, task))) if kind == "pocket" else name
    # A relative path is of the folder that the run began in, and never looked up on the hub.
    if began is not None and not os.path.exists(source):
        source = began.location if began.revision else began.find(owner)
    return identify(source, name, began.revision if began else "")


def load_policies(
    config: TrainConfig, models: Mapping[str, PolicyModel], needed: Sequence[str] | None = None
) -> dict[str, LoadedPolicy]:
    """Load the starting weights of policies: a model each, or an adapter each on shared bases."""
    device = _learner_device(config.device)
    check(transfer_device_rules(config, device))
    # A frozen policy shares its model with every other frozen policy, or adapter's base, of the
    # same path.
    shared: dict[str, tuple[LoraBase, object]] = {}
    policies: dict[str, LoadedPolicy] = {}
    for name, (origin, lora, still) in models.items():
        if needed is not None and name not in needed:
            continue
        path = origin.path
        if lora is None and not still:
            model, tokenizer = load_model(path, config.weights, device)
            tokenizer = _speaking(origin, model, tokenizer)
            policies[name] = LoadedPolicy(Weights(model), tokenizer, origin)
            continue
        if path not in shared:
            model, tokenizer = load_model(path, config.weights, device)
            base = LoraBase(model, origin.named, LoraSettings(), origin.revision)
            shared[path] = base, tokenizer
        base, tokenizer = shared[path]
        tokenizer = _speaking(origin, base.model, tokenizer)
        weights: Weights = (
            FrozenWeights(base.model, base.plain)
            if lora is None
            else base.add(name, config.seed, lora)
        )
        policies[name] = LoadedPolicy(weights, tokenizer, origin, still)
    return policies


def _speaking(origin: ModelIdentity, model: Any, tokenizer: Any) -> Any:
    end_at(model, origin.ends)
    if not origin.speech:
        return tokenizer
    model.config.eos_token_id = model.generation_config.eos_token_id
    return AutoTokenizer.from_pretrained(origin.speech, trust_remote_code=False)


def _learner_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as error:
        why = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used here ({why}): use auto or cpu") from error
    return name


class Engines:
    """The engines that sample from the policies of a run; here those without separate weights."""

    train_policies: Mapping[str, Policy]
    """By policy name, at the training temperature."""
    eval_policies: Mapping[str, Policy]
    """The same weights at the temperature of evaluations."""

    def before_rollout(self) -> None:
        """Make equal rollouts independent of what was sampled before."""

    def before_learning(self) -> None:
        """Make room for the learners."""

    def sync(self, probe: bool = True) -> MetricRow:
        """Give the engines the learners' weights, and prove it, with `probe` at once."""
        return {}

    def prove(self) -> MetricRow:
        """Prove that the engines have the weights of the last sync, unless it did so itself."""
        return {}

    def compare(self, gaps: Mapping[str, LogprobGap]) -> None:
        """Look at |learner - sampler| of every policy's rows, before the learner's first step."""

    def recover(self, error: EngineDeadError) -> None:
        """Start again what died and sync it, or raise `error` with what to change."""
        raise error

    def close(self) -> None:
        """End what was started."""


@contextmanager
def _sampling(weights: Weights, dtype: EngineDType, layers: KeptLinears | None) -> Iterator[None]:
    kind, autocast = weights.model.device.type, dtype in ("bfloat16", "float16")
    with (
        weights.active(),
        layers.active() if layers else nullcontext(),
        torch.autocast(kind, getattr(torch, dtype) if autocast else None, enabled=autocast),
    ):
        yield


class TransformersEngines(Engines):
    """Sampling with the very modules that are trained.

    In another number format than the weights' own, with copies of their linear layers.
    """

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        training: Mapping[str, Sampling],
        evaluating: Mapping[str, Sampling],
        *_: object,
    ) -> None:
        # Neither problems for probes nor learners are needed.
        switches = read_thinking(config.thinking, trained)
        dtype = config.module_dtype
        self._config = config
        self._kept: dict[str, KeptLinears] = {}
        """Layers in the number format of sampling, by one of the policies that share them."""
        self._unproved = False
        active: dict[str, Callable[[], AbstractContextManager[None]]] = {}
        by_model: dict[int, KeptLinears | None] = {}
        for name, loaded in trained.items():
            model = loaded.weights.model
            first = id(model) not in by_model
            if first:
                lower = f"torch.{dtype}" != str(model.dtype)
                layers = by_model[id(model)] = KeptLinears(model, dtype) if lower else None
                self._kept |= {name: layers} if layers else {}
            active[name] = partial(_sampling, loaded.weights, dtype, by_model[id(model)])
            if first:
                with loaded.weights.active() if dtype == "int8" else active[name]():
                    check_decoding(model, share_prefixes=dtype != "float32")
                if dtype == "int8":
                    with active[name]():
                        check_int8(model)

        def make(samplings: Mapping[str, Sampling]) -> dict[str, TransformersPolicy]:
            return {
                name: TransformersPolicy(
                    loaded.weights.model,
                    loaded.tokenizer,
                    name=name,
                    sampling=samplings[name],
                    max_batch=config.max_batch,
                    thinking=switches[name],
                    active=active[name],
                    engine_dtype=dtype,
                )
                for name, loaded in trained.items()
            }

        self.train_policies: Mapping[str, Policy] = make(training)
        self.eval_policies: Mapping[str, Policy] = make(evaluating)

    def sync(self, probe: bool = True) -> MetricRow:
        """Renew the layers in the number format of sampling, and with `probe` check them."""
        if not self._kept:
            return {}
        started = time.perf_counter()
        for layers in self._kept.values():
            layers.refresh()
        self._unproved = True
        row: MetricRow = {"time/sync": time.perf_counter() - started}
        return row | (self.prove() if probe else {"time/sync_check": 0.0})

    def prove(self) -> MetricRow:
        """Raise `SyncError` unless every layer holds the learner's weights, rounded."""
        if not self._unproved:
            return {}
        began = time.perf_counter()
        for policy, layers in self._kept.items():
            check_layers(layers.differing(), policy, self._config.module_dtype)
        self._unproved = False
        return {"time/sync_check": time.perf_counter() - began}

    def compare(self, gaps: Mapping[str, LogprobGap]) -> None:
        """Raise `SyncError` if int8 is too coarse for a policy."""
        if self._config.module_dtype == "int8":
            for name, gap in gaps.items():
                check_coarseness(gap, name, self._config.sync_tolerance)


class ElsewherePolicy(TemplatedPolicy):
    """Description of a policy whose engine is in rollout workers."""

    def __init__(
        self,
        name: str,
        chat: ChatTokenizer,
        sampling: Sampling,
        thinking: bool | None,
        batching: Batching,
        engine_dtype: EngineDType,
    ) -> None:
        self.name = self.original = name  # `thinking_as` renames a copy
        self.sampling, self.thinking, self._chat = sampling, thinking, chat
        self.template_id, self.batching = chat.template_id, batching
        self.engine_dtype = engine_dtype

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Raise `FlowzooError`: only rollout workers sample."""
        raise FlowzooError(f"policy {self.name!r} samples in rollout workers, and not here")

    async def close(self) -> None:
        """No-op."""


class EnginesElsewhere(Engines):
    """The driver's view of the engines of rollout workers."""

    def __init__(
        self,
        config: TrainConfig,
        trained: Mapping[str, LoadedPolicy],
        training: Mapping[str, Sampling],
        evaluating: Mapping[str, Sampling],
        *_: object,
    ) -> None:
        # Neither problems for probes nor learners are needed.
        switches = read_thinking(config.thinking, trained)
        chats = {
            name: ChatTokenizer(loaded.tokenizer, switches[name])
            for name, loaded in trained.items()
        }
        traits = config.engine_traits
        batching: Batching = "stream" if traits.batches_itself else "static"
        dtype = config.resolved_dtype if traits.own_weights else config.module_dtype

        def make(samplings: Mapping[str, Sampling]) -> dict[str, Policy]:
            return {
                name: ElsewherePolicy(name, chat, samplings[name], switches[name], batching, dtype)
                for name, chat in chats.items()
            }

        self.train_policies: Mapping[str, Policy] = make(training)
        self.eval_policies: Mapping[str, Policy] = make(evaluating)
