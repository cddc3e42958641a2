"""The optimizer of one policy: its kind, parameters, number format and learning rate."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from flowzoo.aliases import ParamGroup, StateDict
from flowzoo.baselines.learner.config import LearnerConfig
from flowzoo.baselines.learner.stochastic_adamw import StochasticAdamW
from flowzoo.baselines.learner.weights import Weights
from flowzoo.errors import UsageError, missing_extra


def make_optimizer(weights: Weights, config: LearnerConfig) -> torch.optim.Optimizer:
    """The optimizer that `config` names, on the parameters of `weights`."""
    parameters = weights.parameters()
    kinds = {parameter.dtype for parameter in parameters}
    dtype = torch.float32 if weights.is_adapter else getattr(torch, config.weights)
    if kinds - {dtype}:
        raise UsageError(
            f"a learner with `weights` {config.weights} trains parameters in {dtype}, got "
            f"{', '.join(sorted(map(str, kinds)))}: load the model with dtype={dtype}."
        )
    groups = decay_groups(weights, config)
    if config.optimizer == "adafactor":
        return torch.optim.Adafactor(groups, lr=config.lr, weight_decay=config.weight_decay)
    if config.optimizer == "sgd":  # without momentum its decay is decoupled, as AdamW's is
        return torch.optim.SGD(groups, lr=config.lr, weight_decay=config.weight_decay)
    choices: dict[str, Any] = {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "eps": config.adam_eps,
        "weight_decay": config.weight_decay,
    }
    if config.optimizer == "muon":
        return MuonAdamW(*_muon_groups(weights, groups), **choices)
    if config.optimizer == "adamw8bit":
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise missing_extra("bitsandbytes", "bits", "`optimizer` adamw8bit") from error
        return AdamW8bit(groups, **choices)
    if dtype != torch.float32:
        return StochasticAdamW(groups, **choices)
    # On the CPU torch would otherwise step one parameter after another, ten passes over each.
    fused = True if all(parameter.device.type == "cpu" for parameter in parameters) else None
    return torch.optim.AdamW(groups, **choices, fused=fused)


def decay_groups(weights: Weights, config: LearnerConfig) -> list[ParamGroup]:
    """Parameters with weight decay and those without, as groups of an optimizer."""
    # Norms, biases and what a family marks itself (the rates of Mamba) do not decay, as in the
    # Trainer of transformers.
    parameters = weights.parameters()
    if config.decay == "all":
        return [{"params": parameters}]
    biases = {id(p) for name, p in weights.model.named_parameters() if name.endswith("bias")}
    still = {
        id(p)
        for p in parameters
        if p.ndim < 2 or id(p) in biases or getattr(p, "_no_weight_decay", False)
    }
    groups: list[ParamGroup] = [
        {"params": [p for p in parameters if id(p) not in still]},
        {"params": [p for p in parameters if id(p) in still], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def _muon_groups(
    weights: Weights, groups: Sequence[ParamGroup]
) -> tuple[list[ParamGroup], list[ParamGroup]]:
    # A row of the embeddings and of the output head belongs to a token, and steps of one length in
    # all directions would move tokens that were never seen.
    model = weights.model
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    outer = {id(p) for module in ends if module is not None for p in module.parameters()}
    matrices: list[ParamGroup] = []
    others: list[ParamGroup] = []
    for group in groups:
        for kind, is_matrix in ((matrices, True), (others, False)):
            parameters = [
                p for p in group["params"] if (p.ndim == 2 and id(p) not in outer) is is_matrix
            ]
            if parameters:
                kind.append({**group, "params": parameters})
    return matrices, others


class MuonAdamW(torch.optim.Optimizer):
    """Torch's Muon for the matrices of the layers, its AdamW for all other parameters, as one."""

    # Muon's steps, scaled as in arXiv 2502.16982, are as large as AdamW's: both take one learning
    # rate. Groups and states are shared, so that a state dict has the usual format.

    def __init__(
        self,
        matrices: Sequence[ParamGroup],
        others: Sequence[ParamGroup],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
    ) -> None:
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            adjust: dict[str, Any] = {"adjust_lr_fn": "match_rms_adamw"}
            self._parts.append(torch.optim.Muon(list(matrices), **shared, **adjust))
        if others:
            self._parts.append(torch.optim.AdamW(list(others), betas=betas, eps=eps, **shared))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def __setstate__(self, state: StateDict) -> None:
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        start = 0
        for part in self._parts:
            end = start + len(part.param_groups)
            part.param_groups, part.state = self.param_groups[start:end], self.state
            start = end

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move every parameter that has a gradient."""
        loss = None if closure is None else closure()
        for part in self._parts:
            part.step()
        return loss
