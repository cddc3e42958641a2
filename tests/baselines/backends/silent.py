"""Two ranks, of which rank 1 is alive and silent, and rank 0 leaves (`test_torchrun.py`).

`WORDS`, a global: the rank, the file that the ranks meet at, and one to which rank 0 writes how
long it took to leave, and whether what it sent had arrived.
"""

import ctypes
import os
import time
from datetime import timedelta
from pathlib import Path

os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch
from torch import distributed

from flowzoo.baselines.backends import torchrun
from flowzoo.baselines.backends.data_parallel import DataParallel


def main(rank: int, store: str, said: str) -> None:
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(hours=1)
    )
    if rank == 1:
        time.sleep(600)
    backend = torchrun.TorchrunBackend(DataParallel())
    sent = distributed.all_reduce(torch.zeros(1), async_op=True)
    torchrun.CLOSE_S = 1.0
    began = time.monotonic()
    backend.close()
    Path(said).write_text(f"{time.monotonic() - began:.1f} {sent.is_completed()}")


if __name__ == "<run_path>":
    main(*globals()["WORDS"])
    ctypes.pythonapi.Py_Exit(0)  # as an interpreter ends; a fork would leave without looking back
