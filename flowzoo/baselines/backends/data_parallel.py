"""Learner groups of ranks that train a policy together, over torch.distributed."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from flowzoo.aliases import Floats, T
from flowzoo.baselines.learner.hidden_states import layers_of
from flowzoo.baselines.learner.learner_group import ENTRY, LearnerGroup, add_entry
from flowzoo.errors import FlowzooError
from flowzoo.grace import GRACE
from flowzoo.waits import LIMITS, WaitKind

WAIT_S = 7200.0  # time limit for a rank that neither answers nor dies, in seconds
RANKS = WaitKind("the run ends; its last checkpoint is kept")
"""Answers of ranks."""


class RankError(FlowzooError, RuntimeError):
    """Another rank failed or is gone; its own error is in its own output."""

    reported_elsewhere = True


class DataParallel(LearnerGroup):
    """Every rank has the whole model; rows and gradients are shared."""

    # Right for adapters, whose gradients are small, and for models that fit.

    alone = False

    def __init__(self) -> None:
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        self.writes = self.rank == 0

    def local_parts(self, parts: Sequence[T], turn: int) -> list[T]:
        """Every world-size-th part; parts are sorted by length, so ranks get equal work."""
        return list(parts[(self.rank - turn) % self.world :: self.world])

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Add up gradients; a parameter without a gradient on any rank stays without."""
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        with _waiting("gradients"):
            distributed.all_reduce(there, distributed.ReduceOp.MAX)
        some = [p for p, any_rank in zip(parameters, there.tolist(), strict=True) if any_rank]
        for parameter in some:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for kind in sorted({p.dtype for p in some}, key=str):
            grads = [cast("Tensor", p.grad) for p in some if p.dtype == kind]
            together = torch.cat([grad.flatten() for grad in grads])
            distributed.all_reduce(together)
            for grad, total in zip(grads, together.split([g.numel() for g in grads]), strict=True):
                grad.copy_(total.view_as(grad))

    def gather(self, value: T) -> list[T]:
        """Gather pickled values with torch.distributed."""
        values: list[T | None] = [None] * self.world
        try:
            with _waiting("values"):
                distributed.all_gather_object(values, value)
        except RuntimeError as error:
            raise RankError(f"another rank has gone: {str(error).splitlines()[0]}") from error
        return cast("list[T]", values)


class FullyShardedDataParallel(DataParallel):
    """The model is sharded over the ranks."""

    def shard(self, model: PreTrainedModel) -> None:
        """Shard every layer by itself, and the rest with the root."""
        # FSDP2 averages gradients over ranks, and the losses are normalized over the whole step.
        # The factor has to be set on every module, since setting it on the root is not recursive:
        # all layers would have gradients 1 / ranks as long, which Adam and the loss hide.
        if isinstance(model, FSDPModule):
            return
        mesh = init_device_mesh(model.device.type, (self.world,))
        for layer in layers_of(model):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other
        add_entry(model)
        register_fsdp_forward_method(model, ENTRY)

    def reshard(self, model: PreTrainedModel) -> None:
        """Reshard all modules; the root keeps its parameters until its backward pass."""
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def num_forward_passes(self, parts: int) -> int:
        """Largest number of any rank: every forward pass gathers weights from all."""
        return max(self.gather(parts))

    def set_gradient_sync(self, model: PreTrainedModel, now: bool) -> None:
        """Set FSDP2's gradient sync."""
        cast("FSDPModule", model).set_requires_gradient_sync(now)

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """No-op: the last backward pass has done so."""

    def all_reduce(self, products: Floats) -> Floats:
        """Sum the products of all ranks."""
        total = torch.from_numpy(np.array(products, np.float64))
        distributed.all_reduce(total)
        return total.numpy()

    def local(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Local parts of distributed tensors; others are returned unchanged."""
        return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


@contextmanager
def _waiting(of: str) -> Iterator[None]:
    with GRACE.hold(), RANKS.wait("the other ranks", of, limit_s=LIMITS.wait_s or WAIT_S):
        yield


def join_ranks(host: str, shard: str, *, cuda: bool, **options: Any) -> DataParallel:
    """Join the process group of the ranks that meet at `host`; the learner group of this rank."""
    if host in ("127.0.0.1", "localhost"):
        # Else gloo looks up the host's name, which need not lead anywhere.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    kinds = "cpu:gloo,cuda:nccl" if cuda else "gloo"
    limit = timedelta(seconds=LIMITS.wait_s or WAIT_S)
    with _waiting("start"):
        distributed.init_process_group(kinds, timeout=limit, **options)
    return FullyShardedDataParallel() if shard == "full" else DataParallel()
