"""Ways of new weights to the engine that cannot work: refused before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flowzoo.baselines.settings.config import TrainConfig
from flowzoo.errors import UsageError


def check_transfer(config: TrainConfig) -> None:
    """Refuse `weight_transfer` from GPU to GPU where another way is taken, or none is there.

    Raises:
        UsageError: rollout workers; an engine in this process, or none of vLLM; adapters; a learner
            on the CPU; `ipc` between two GPUs, or `nccl` on one.
    """
    way = config.weight_transfer
    if way == "file":
        return
    told = f"`weight_transfer` {way}"
    if config.backend == "ray":
        raise UsageError(
            f"{told} goes from GPU to GPU on one machine, and `backend` ray moves weights through "
            "its object store to all nodes, and on each through a file: leave it out"
        )
    if config.engine != "vllm" or config.placement != "split":
        have = f"{config.engine}, {config.placement}" if config.engine == "vllm" else config.engine
        raise UsageError(
            f"{told} is for a vLLM engine in processes of its own: set engine=vllm and "
            f"placement=split (got {have}), or leave it out"
        )
    if config.lora_rank:
        raise UsageError(
            f"{told} carries all weights of a model, and with `lora_rank` {config.lora_rank} only "
            "adapters are sent, which vLLM loads from files of their own: leave it out"
        )
    check_transfer_device(config, config.device)
    learners, engines = _learner_gpus(config), _engine_gpus(config)
    if way == "ipc" and engines != learners:
        raise UsageError(
            f"{told} shares memory of one GPU, and the engine is to be on {_named(engines)} while "
            f"the learner is on {_named(learners)}: leave out `engine_devices` and `device`, or "
            "set weight_transfer=nccl"
        )
    if way == "nccl" and set(engines) & set(learners):
        raise UsageError(
            f"{told} goes between two GPUs, and both the learner and the engine are to be on "
            f"{_named(engines)}: name others in `engine_devices`, or set weight_transfer=ipc"
        )


def check_transfer_device(config: TrainConfig, device: str) -> None:
    """Refuse `weight_transfer` from GPU to GPU where the learner is on a CPU.

    Raises:
        UsageError: as said.
    """
    if config.weight_transfer != "file" and device.partition(":")[0] not in ("auto", "cuda"):
        raise UsageError(
            f"`weight_transfer` {config.weight_transfer} goes from GPU to GPU, and the learner is "
            f"on {device}: leave it at file"
        )


def _visible() -> list[str]:
    """The GPUs of this process, as far as the environment names them."""
    return [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]


def _learner_gpus(config: TrainConfig) -> list[str]:
    """The GPUs that learners on this machine compute on, as CUDA_VISIBLE_DEVICES writes them."""
    number = config.device.partition(":")[2]
    places = [int(number) if number.isdecimal() else 0]
    if config.backend == "torchrun":
        places = list(range(int(os.environ.get("LOCAL_WORLD_SIZE", config.ranks))))
    seen = _visible()
    return [seen[place] if place < len(seen) else str(place) for place in places]


def _engine_gpus(config: TrainConfig) -> list[str]:
    """The GPUs of their engines, in the same order; see `own_device` in `engines.vllm`."""
    if config.engine_devices:
        named = [one.strip() for one in config.engine_devices.split(",") if one]
        return named if config.backend == "torchrun" else named[:1]
    return _learner_gpus(config) if config.backend == "torchrun" else (_visible() or ["0"])[:1]


def _named(gpus: Sequence[str]) -> str:
    return f"GPU {', '.join(gpus)}"
