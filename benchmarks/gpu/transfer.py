"""How long weights take from one process to another: file in shared memory, CUDA IPC, NCCL.

    python benchmarks/gpu/transfer.py --size 1.7B --json transfer.json
    python benchmarks/gpu/transfer.py --size tiny                     # any CPU: file and gloo

Two processes; the second one reports when all weights are there and adds them up, so that nothing
is lazy. `file` is what a split engine gets today, `ipc` shares the memory of one GPU, `nccl` goes
from GPU to GPU and needs two, `gloo` between processes of a CPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import tyro

sys.path.insert(0, str(Path(__file__).parent))
from common import device_name, model_config, report

WAIT_S = 300


@dataclass(frozen=True)
class Options:
    """What is measured."""

    size: str = "tiny"
    """tiny, 0.6B, 1.7B or 4B."""
    repeats: int = 3
    """Times that all weights go across; the first is reported apart."""
    json: Path | None = None
    """File for the results."""


def weights(size: str, device: str) -> dict[str, Any]:
    """Tensors of a model's shapes in bfloat16."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(size))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    return {
        name: torch.full(shape, 0.5, dtype=torch.bfloat16, device=device)
        for name, shape in shapes.items()
    }


def total(tensors: dict[str, Any]) -> float:
    """The sum of everything, which has to be read for it."""
    return sum(float(one.sum(dtype=torch.float32)) for one in tensors.values())


def receive(way: str, size: str, repeats: int, store: str, inbox: Any, outbox: Any) -> None:
    """The second process."""
    if way in ("nccl", "gloo"):
        device = join(way, 1, store)
        mine = weights(size, device)
        for _ in range(repeats):
            for one in mine.values():
                torch.distributed.broadcast(one.view(torch.uint8), 0)
            outbox.put(total(mine))
    for _ in range(repeats if way in ("file", "ipc") else 0):
        given = inbox.get(timeout=WAIT_S)
        if way == "file":
            from safetensors.torch import load_file

            given = load_file(given, device=device_name())
        outbox.put(total(given))
        del given
    inbox.get(timeout=WAIT_S)  # the sender's memory is not given up before


def join(way: str, rank: int, store: str) -> str:
    """Make a process group of two; the device of this one."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group(
        way, init_method=f"file://{store}", rank=rank, world_size=2,
        timeout=timedelta(seconds=WAIT_S),
    )  # fmt: skip
    if way == "gloo":
        return "cpu"
    torch.cuda.set_device(rank)
    return f"cuda:{rank}"


def measure(way: str, options: Options) -> dict[str, Any]:
    """Seconds of every transfer, sender's and receiver's work together."""
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as room:
        store = f"{room}/store"
        given = (way, options.size, options.repeats, store, inbox, outbox)
        other = context.Process(target=receive, args=given, daemon=True)
        other.start()
        try:
            device = join(way, 0, store) if way in ("nccl", "gloo") else device_name()
            mine = weights(options.size, device)
            size, wanted = sum(one.nbytes for one in mine.values()), total(mine)
            for number in range(options.repeats):
                began = time.perf_counter()
                path = ""
                if way == "file":
                    from safetensors.torch import save_file

                    path = f"{room}/weights-{number}.safetensors"
                    save_file(mine, path)
                    inbox.put(path)
                elif way == "ipc":
                    inbox.put(mine)
                else:
                    for one in mine.values():
                        torch.distributed.broadcast(one.view(torch.uint8), 0)
                assert outbox.get(timeout=WAIT_S) == wanted, "other weights came"
                seconds.append(time.perf_counter() - began)
                if way == "file":
                    os.unlink(path)
        finally:
            inbox.put(None)
            other.join(30)
            other.kill()
            if torch.distributed.is_initialized():
                torch.distributed.destroy_process_group()
    best = min(seconds[1:] or seconds)
    return {"way": way, "bytes": size, "first_seconds": seconds[0], "seconds": best,
            "gib_per_second": size / best / 2**30}  # fmt: skip


def main(options: Options) -> int:
    """Measure every way that this machine has and print one JSON object."""
    possible = ["file", "gloo"] if device_name() == "cpu" else ["file", "ipc"]
    if torch.cuda.device_count() > 1:
        possible.append("nccl")
    report(
        {
            "benchmark": "transfer",
            "options": asdict(options),
            "results": [measure(way, options) for way in possible],
            "left_out": [] if "nccl" in possible else ["nccl: it takes two GPUs"],
        },
        options.json,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
