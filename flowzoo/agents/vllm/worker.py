"""What flowzoo adds to vLLM's workers: loading weights from memory or from one safetensors file.

vLLM mixes this class into its worker class by name (`worker_extension_cls`), in whatever process
the worker runs, a server's included. Nothing is unpickled: safetensors hold numbers only.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Mapping
from typing import Any


class WeightLoader:
    """Methods of a worker, called through `collective_rpc`."""

    def flowzoo_load(self, tensors: Mapping[str, Any]) -> None:
        """Replace the weights by `tensors` (checkpoint names)."""
        worker: Any = self
        worker.reload_weights(weights_iterator=list(tensors.items()))
        repack_tied_head(worker.get_model())

    def flowzoo_load_file(self, path: str) -> None:
        """Replace the weights by those in the safetensors file at `path`."""
        from safetensors.torch import load_file

        self.flowzoo_load(load_file(path))

    def flowzoo_end_with(self, pid: int) -> None:
        """Let this process end when process `pid` does, however that ends (on Linux).

        vLLM's processes outlive one that is killed, and would keep a GPU's memory for ever.
        """
        if not hasattr(os, "pidfd_open"):
            return
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            os._exit(1)

        def wait() -> None:
            select.select([end], [], [])
            os._exit(1)

        threading.Thread(target=wait, name="flowzoo-owner", daemon=True).start()


def repack_tied_head(model: Any) -> None:
    """Let an output head that is the embedding see new weights.

    On CPUs vLLM multiplies by a packed copy of the head. A reload packs anew what it loads, and a
    tied head is loaded as the embedding only: it would keep the old copy, without a sign.
    """
    head, body = getattr(model, "lm_head", None), getattr(model, "model", None)
    embedding = getattr(body, "embed_tokens", None)
    if head is None or embedding is None or head.weight.device.type != "cpu":
        return
    method = getattr(head, "quant_method", None)
    tied = head is embedding or head.weight.data_ptr() == embedding.weight.data_ptr()
    if tied and method is not None:
        method.process_weights_after_loading(head)
