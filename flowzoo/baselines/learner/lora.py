"""LoRA adapters: several policies as small trained parts of one frozen model."""

import threading
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from flowzoo.agents.model_files import GENERATION
from flowzoo.aliases import StateDict
from flowzoo.baselines.learner.config import LoraTargets
from flowzoo.baselines.learner.weights import Start, Weights, copy_tensors, whole
from flowzoo.declared import Positive, check_declared
from flowzoo.errors import UsageError, missing_extra
from flowzoo.seeding import key_int

_PREFIX = "base_model.model."
"""Before the names in an adapter's file: PEFT's layout, which every engine reads."""
_UNCALLED = {
    "out_proj": {"falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"},
    "dt_proj": {"falcon_mamba", "jamba", "mamba"},
}
"""Layers, and the kinds of models that read their weights and do not call them: PEFT refuses the
first, and adapters of the second are not trained."""
_ROUTERS = {"router", "gate", "shared_expert_gate", "wg"}
"""Names of modules that route, in families whose routers are linear layers."""


@dataclass(frozen=True, slots=True)
class LoraSettings:
    """LoRA adapters (arXiv 2106.09685) on all linear layers but the output head and routers."""

    # A small step of a router's adapter would send tokens to experts that were not trained for
    # them. The experts are tensors without linear layers in most families, and stay untouched.

    rank: Positive[int] = 16
    alpha: Positive[int] = 32  # updates are scaled by alpha / rank
    targets: LoraTargets = "linear"
    """`all`: what PEFT calls all-linear, in some families routers and experts too."""

    def __post_init__(self) -> None:
        check_declared(self)


class LoraBase:
    """A frozen model with LoRA adapters on it, one of which is active at a time."""

    def __init__(
        self, model: PreTrainedModel, path: str, settings: LoraSettings, revision: str = ""
    ) -> None:
        self.model, self.settings = model.requires_grad_(False), settings
        self.path, self.revision = path, revision
        self._wanted: list[str] = []
        self._linears = linears_of(model)
        self._lock = threading.RLock()
        self._active = ""
        self._count = 0

    def add(self, name: str, seed: int, settings: LoraSettings | None = None) -> "LoraWeights":
        """A new adapter, whose output is 0; `name` and `seed` decide its first weights.

        `settings` replace the base's.
        """
        settings = settings or self.settings
        config = lora_config(settings, self.path, self._targets(settings), self.revision)
        label = f"p{self._count}"  # a module's name, in which a policy's dots would be an error
        self._count += 1
        with self._lock, torch.random.fork_rng(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Already found a `peft_config`")  # several are meant
            torch.manual_seed(key_int("adapter", name, seed) >> 1)
            try:
                self.model.add_adapter(config, adapter_name=label)
            except ValueError as error:
                raise UsageError(
                    f"{type(self.model).__name__} takes no LoRA adapters "
                    f"({str(error).splitlines()[0][:200]}): leave out `lora_rank`."
                ) from error
            self._active = label
        weights = LoraWeights(self, label, self._describe(label, settings))
        for parameter in weights.parameters():  # of a base in lower precision too
            parameter.data = parameter.data.float()
        if self.model.dtype == torch.float32:  # autocast would cast inputs back
            for module in self.model.modules():
                if hasattr(module, "cast_input_dtype_enabled"):
                    module.cast_input_dtype_enabled = False  # type: ignore[assignment]
        return weights

    def _targets(self, settings: LoraSettings) -> str | list[str]:
        if settings.targets == "all":
            return "all-linear"
        if not self._wanted:
            self._wanted = adaptable(self.model)
        return self._wanted

    def _describe(self, label: str, settings: LoraSettings) -> str:
        part = f".lora_A.{label}."
        names = [name for name, _ in self.model.named_parameters() if part in name]
        adapted = [name.partition(part)[0] for name in names]
        experts = [
            name.replace(".base_layer", "")
            for name, parameter in self.model.named_parameters()
            if ".experts." in name and ".lora_" not in name and parameter.ndim > 2
        ]
        if any(name.endswith(".experts") for name in adapted):  # with `targets` all
            experts = []
        left = [name for name in self._linears if name not in adapted]
        description = f"LoRA of rank {settings.rank} on {_count_names(adapted)}"
        return (
            f"{description}; not on {_count_names([*left, *experts])}"
            if left or experts
            else description
        )

    @contextmanager
    def use(self, label: str) -> Iterator[None]:
        """Inside, `label` is the active adapter of the model; other threads wait."""
        with self._lock:
            if self._active != label:
                self.model.set_adapter(label)
                self._active = label
            yield

    @contextmanager
    def plain(self) -> Iterator[PreTrainedModel]:
        """Inside, the model computes without any adapter; other threads wait."""
        with self._lock:
            if self._count == 0:
                yield self.model
                return
            self.model.disable_adapters()
            try:
                yield self.model
            finally:
                self.model.enable_adapters()


class LoraWeights(Weights):
    """One adapter of a `LoraBase`."""

    is_adapter = True

    def __init__(self, base: LoraBase, label: str, note: str) -> None:
        super().__init__(base.model)
        self.base, self._label = base, label
        self.notes = (note,)

    def parameters(self) -> list[nn.Parameter]:
        """Parameters of the adapter."""
        part = f".{self._label}."
        return [p for name, p in self.model.named_parameters() if part in name]

    def active(self) -> AbstractContextManager[None]:
        """Context in which the base computes with this adapter."""
        return self.base.use(self._label)

    def start(self) -> Start:
        """The base with its adapters off, since a new adapter's output is 0."""
        return self.base.plain

    def save(self, folder: Path | None) -> None:
        """Write the adapter in PEFT's format."""
        state = self.state(keep=folder is not None)
        if folder is not None:
            save_adapter(state, self.model.peft_config[self._label], folder)
            self.model.generation_config.to_json_file(folder / GENERATION)

    def put(self, state: Mapping[str, torch.Tensor], source: str) -> None:
        """Copy `state` into the adapter."""
        part, targets = f".{self._label}.", dict[str, torch.Tensor]()
        for name, parameter in self.model.named_parameters():
            if part in name:
                targets[_PREFIX + name.replace(part, ".")] = parameter
        copy_tensors(state, targets, source, set(targets))

    def state(self, *, keep: bool = True) -> dict[str, torch.Tensor]:
        """Whole tensors of the adapter, by name."""
        state: StateDict = self.model.get_adapter_state_dict(self._label)
        adapter = whole({f"{_PREFIX}{name}": value for name, value in state.items()}, keep=keep)
        return {name: value.contiguous() for name, value in adapter.items()}


def lora_config(
    settings: LoraSettings, path: str, targets: str | Sequence[str], revision: str = ""
) -> Any:
    """PEFT's description of an adapter on `targets` of a model: its folder, or id and revision."""
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise missing_extra("peft", "train", "LoRA training") from error
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
        base_model_name_or_path=path,
        revision=revision or None,
    )


def save_adapter(state: Mapping[str, torch.Tensor], config: Any, folder: Path) -> None:
    """Write an adapter's tensors and its description into `folder`, in PEFT's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(dict(state), folder / "adapter_model.safetensors")
    config.save_pretrained(str(folder))


def linears_of(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers but the output head."""
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not head
    ]


def adaptable(model: PreTrainedModel) -> list[str]:
    """Names of the linear layers that get adapters: all but routers, and what PEFT cannot have."""
    # PEFT takes names such as `gate_proj` to mean the experts, in a shared one too, in families
    # whose experts were linear layers once; it refuses Mamba's layers whose kernels read the
    # weights.
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    kinds = {name: type(module).__name__ for name, module in model.named_modules()}
    kind = model.config.model_type

    def left_alone(name: str) -> bool:
        parts = name.split(".")
        above = (kinds[".".join(parts[:depth])] for depth in range(1, len(parts) + 1))
        routes = bool(_ROUTERS.intersection(parts)) or any("Router" in kind for kind in above)
        return routes or kind in _UNCALLED.get(parts[-1], ())

    names = [name for name in linears_of(model) if not left_alone(name)]
    probe = LoraConfig(target_modules=names)
    convert_peft_config_for_transformers(probe, model, None)
    return [name for name in names if name in (probe.target_modules or ())]


def _count_names(names: Sequence[str]) -> str:
    # `q_proj ×2, experts.down_proj ×2`
    short = (name.rsplit(".", 2 if ".experts." in name else 1) for name in names)
    counts = Counter(".".join(parts[1:]) for parts in short)
    return ", ".join(f"{name} ×{count}" for name, count in counts.items())
