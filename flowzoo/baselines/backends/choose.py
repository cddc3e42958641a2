"""The backend that the settings name."""

from __future__ import annotations

from flowzoo.baselines.backends.backend import RunBackend
from flowzoo.baselines.backends.local import LocalRunBackend
from flowzoo.baselines.settings.config import TrainConfig


def open_backend(config: TrainConfig) -> RunBackend:
    """The backend of this process; it never becomes another one by itself.

    Raises:
        UsageError: it cannot be had here.
    """
    if config.backend == "local":
        return LocalRunBackend()
    from flowzoo.baselines.backends.torchrun import TorchrunBackend, meet

    return TorchrunBackend(meet(config))
