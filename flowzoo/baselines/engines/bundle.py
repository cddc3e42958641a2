"""How the GPUs of a rollout worker are shared by its engines."""

from __future__ import annotations

import os
from typing import NamedTuple

_SHARE = 0.8
"""Of a GPU that no learner works on; the rest is left to graphs, buffers and the allocator."""


class BundleShare(NamedTuple):
    """What one engine has of the GPUs of a worker."""

    devices: str
    """As CUDA_VISIBLE_DEVICES writes them; empty: those that the worker sees."""
    tensor_parallel: int
    """How many."""
    gpu_share: float
    """Of each."""


def share_of_bundle(gpus: float, engines: int, number: int) -> BundleShare:
    """What engine `number` of `engines` has of `gpus` GPUs, which Ray has chosen.

    One GPU, or a part of one, is shared by all engines; of more each has as many of its own.
    """
    if gpus <= 1:
        return BundleShare("", 1, _SHARE * (gpus or 1) / engines)
    each = int(gpus) // engines
    chosen = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    return BundleShare(",".join(chosen[number * each : (number + 1) * each]), each, _SHARE)
