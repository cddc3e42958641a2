"""A learner in a folder: weights, and what else it needs to go on."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flowzoo.aliases import StateDict
from flowzoo.baselines.learner.weights import like

if TYPE_CHECKING:
    from flowzoo.baselines.learner.update import Learner

STATE = "learner.pt"
TENSORS = "optimizer"


def save_learner(learner: Learner, folder: Path) -> None:
    """Write `learner` into `folder`; every rank of its learner group must call it."""
    # Sharded tensors go to `optimizer/`, where every rank writes its part and any number of ranks
    # reads them. What one rank writes alone comes last: its failure leaves no rank waiting.
    learner.learner_group.reshard(learner.model)
    state = learner.state_dict()
    tensors = _taken_out(learner, state)
    if tensors:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        writer = HuggingFaceStorageWriter(str(folder / TENSORS), save_distributed=True)
        save(tensors, storage_writer=writer)
    learner.weights.save(folder if learner.learner_group.writes else None)
    if learner.learner_group.writes:
        save_tensors(state, folder / STATE)


def save_tensors(value: object, path: Path) -> None:
    """Write `value` with `torch.save`; equal values have equal bytes."""
    with path.open("wb") as file:
        try:
            torch.save(_intern(value), file)
        except RuntimeError as error:  # the archive could not be ended: why is in its context
            cause = error.__context__
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            if cause is None:
                raise
            raise OSError(cause.errno, cause.strerror, str(path)) from error


def _intern(value: Any) -> Any:
    # Pickles tell two equal texts from one text twice.
    if type(value) is dict:
        return {_intern(key): _intern(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_intern, value))
    return sys.intern(value) if type(value) is str else value


def load_learner(learner: Learner, folder: Path) -> None:
    """Read what `save_learner` wrote, on any number of ranks; every rank must call it."""
    learner.learner_group.reshard(learner.model)
    learner.weights.load(folder)
    state: StateDict = torch.load(folder / STATE, weights_only=True)
    if (folder / TENSORS).is_dir():
        _put_back(learner, state, folder / TENSORS)
    else:
        _spread(learner, state)
    learner.load_state_dict(state)


def _names(learner: Learner) -> dict[int, str]:
    return {id(parameter): name for name, parameter in learner.model.named_parameters()}


def _stepped_parameters(learner: Learner) -> list[torch.nn.Parameter]:
    return [parameter for group in learner.optimizer.param_groups for parameter in group["params"]]


def _taken_out(learner: Learner, state: StateDict) -> dict[str, Tensor]:
    names, tensors = _names(learner), dict[str, Tensor]()
    states = state["optimizer"]["state"]
    state["optimizer"] = {**state["optimizer"], "state": dict(states)}
    for index, parameter in enumerate(_stepped_parameters(learner)):
        values = states.get(index, {})
        sharded = {key for key, value in values.items() if hasattr(value, "full_tensor")}
        for key in sharded:
            tensors[f"{names[id(parameter)]}:{key}"] = values[key]
        if sharded:
            rest = {key: value for key, value in values.items() if key not in sharded}
            state["optimizer"]["state"][index] = rest
    mean = state["coherence"] and state["coherence"]["mean"]
    if mean and hasattr(mean[0], "full_tensor"):
        for parameter, value in zip(learner.parameters, mean, strict=True):
            tensors[f"{names[id(parameter)]}:mean"] = value
        state["coherence"] = {**state["coherence"], "mean": []}
    return tensors


def _put_back(learner: Learner, state: StateDict, folder: Path) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    names = _names(learner)
    parameters = {names[id(parameter)]: parameter for parameter in learner.parameters}
    tensors = {
        key: torch.zeros_like(parameters[key.rpartition(":")[0]], requires_grad=False)
        for key in reader.read_metadata().state_dict_metadata
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process is meant
        load(tensors, storage_reader=reader)
    indices = {
        names[id(parameter)]: index for index, parameter in enumerate(_stepped_parameters(learner))
    }
    means: dict[str, Tensor] = {}
    for key, value in tensors.items():
        name, _, kind = key.rpartition(":")
        if kind == "mean":
            means[name] = value
        else:
            state["optimizer"]["state"].setdefault(indices[name], {})[kind] = value
    if means:
        state["coherence"]["mean"] = [
            means[names[id(parameter)]] for parameter in learner.parameters
        ]


def _spread(learner: Learner, state: StateDict) -> None:
    for index, parameter in enumerate(_stepped_parameters(learner)):
        values = state["optimizer"]["state"].get(index, {})
        for key, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim:
                values[key] = like(parameter, value)
    if state["coherence"] is not None:
        mean = state["coherence"]["mean"]
        pairs = zip(learner.parameters, mean, strict=False)
        state["coherence"]["mean"] = [like(parameter, value) for parameter, value in pairs]
