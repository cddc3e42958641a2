"""Receivers of a weight transfer, which run in vLLM's workers.

Nothing here unpickles: safetensors hold numbers only, and handles of GPU memory come as names,
numbers and bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.ipc_engine import (
    IPCWeightTransferEngine,
    IPCWeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from flowzoo.agents.vllm.transfer import handles_of


@dataclass
class NothingToAgree(WeightTransferInitInfo):
    """A file needs no connection."""


@dataclass
class WeightsHere(WeightTransferUpdateInfo):
    """All weights, by their names in files: a safetensors file, or tensors of this process."""

    path: str = ""
    tensors: Mapping[str, Any] | None = None


class LocalReceiver(WeightTransferEngine[NothingToAgree, WeightsHere]):
    """Takes weights from a file of this machine, or from memory where it runs beside the learner.

    vLLM has no such back-end; this one is registered as `flowzoo_file`.
    """

    init_info_cls = NothingToAgree
    update_info_cls = WeightsHere

    def init_transfer_engine(self, init_info: NothingToAgree) -> None:
        """No-op: a file needs no connection."""

    def start_weight_update(self) -> None:
        """Let layers wait until they have all their weights."""
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """See `WeightTransferEngine`, which waits for an accelerator even where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: WeightsHere) -> None:
        """Load them."""
        from safetensors.torch import load_file

        tensors = update_info.tensors
        if tensors is None:
            tensors = load_file(update_info.path)
        self.model.load_weights(list(tensors.items()))  # type: ignore[operator] - of all models

    def finish_weight_update(self) -> None:
        """Put the layers back together."""
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_head(self.model)

    def shutdown(self) -> None:
        """No-op."""


class WordedIPCReceiver(IPCWeightTransferEngine):
    """vLLM's `ipc`, whose handles come in words; registered as `flowzoo_ipc`."""

    def parse_update_info(self, update_dict: dict[str, Any]) -> IPCWeightTransferUpdateInfo:
        """See `WeightTransferEngine`. Pickled handles are refused even if vLLM allows them."""
        if update_dict.get("ipc_handles_pickled") is not None:
            raise ValueError("handles of GPU memory are not unpickled here: send them in words")
        given = {**update_dict, "ipc_handles": handles_of(update_dict["ipc_handles"])}
        return super().parse_update_info(given)


def repack_tied_head(model: object) -> None:
    """Let an output head that is the embedding see new weights."""
    # On CPUs vLLM multiplies by a packed copy of the head. A reload packs anew what it loads, and a
    # tied head is loaded as the embedding only: it would keep the old copy, without a sign.
    head, body = getattr(model, "lm_head", None), getattr(model, "model", None)
    embedding = getattr(body, "embed_tokens", None)
    if head is None or embedding is None or head.weight.device.type != "cpu":
        return
    method = getattr(head, "quant_method", None)
    tied = head is embedding or head.weight.data_ptr() == embedding.weight.data_ptr()
    if tied and method is not None:
        method.process_weights_after_loading(head)
